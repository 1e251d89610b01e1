"""DeltaNet, Gated DeltaNet, EFLA and PGDN against their equations, one token and one head at a time."""

import math

import pytest
import torch
from support.plain import (
    assert_matches,
    convolved,
    inputs,
    mamba_decay,
    randomise,
    rms_norm,
    sigmoid,
    silu,
    softplus,
    unit,
)
from torch import Tensor

from prism.layers import mixer_config
from prism.layers.efla import exact_rate
from prism.ops import delta_rule

H, K, V, D = 2, 5, 7, 12


def build(name: str, **fields):
    return randomise(mixer_config(name, heads=H, head_key=K, head_value=V, **fields).build(D))


def definition(mixer, x: Tensor, transition) -> Tensor:
    """`transition(h, k, v, scalars, memory)` gives the new S of head h; the rest is common to the four."""
    gated, scalar_names = "gate" in mixer.sizes, [name for name, size in mixer.sizes.items() if size == H]
    widths = [H * K, H * K, H * V] + ([H * V] if gated else []) + [H] * len(scalar_names)
    rows = (x @ mixer.project.weight.T).split(widths, -1)
    q, k, v = silu(convolved(torch.cat(rows[:3], -1), mixer.conv.weight)).split(widths[:3], -1)
    scalars = dict(zip(scalar_names, rows[-len(scalar_names) :], strict=True))
    memory: list[dict[str, Tensor]] = [{} for _ in range(H)]
    outputs = []
    for t in range(len(x)):
        heads = []
        for h in range(H):
            q_t, k_t, v_t = q[t, h * K : h * K + K], k[t, h * K : h * K + K], v[t, h * V : h * V + V]
            S = transition(h, k_t, v_t, {name: y[t, h] for name, y in scalars.items()}, memory[h])
            memory[h]["S"] = S
            read = rms_norm(S @ unit(q_t), mixer.read.norm.weight, 1e-6)
            heads.append(read * silu(rows[3][t, h * V : h * V + V]) if gated else read)
        outputs.append(mixer.out.weight @ torch.cat(heads))
    return torch.stack(outputs)


def rule(transition):
    """A layer's definition from its transition(mixer, h, S, k, v, scalars, memory)."""

    def whole(mixer, x: Tensor) -> Tensor:
        def of_head(h, k, v, scalars, memory):
            S = memory.get("S", torch.zeros(V, K, dtype=torch.float64))
            return transition(mixer, h, S, k, v, scalars, memory)

        return definition(mixer, x, of_head)

    return whole


def decay(mixer, h, scalars) -> Tensor:
    return mamba_decay(scalars["decay"], mixer.decay.log_rate[h], mixer.decay.bias[h])


@rule
def deltanet(mixer, h, S, k, v, scalars, memory):
    k, beta = unit(k), sigmoid(scalars["beta"])
    return S - beta * torch.outer(S @ k, k) + beta * torch.outer(v, k)


@rule
def gated_deltanet(mixer, h, S, k, v, scalars, memory):
    k, beta = unit(k), sigmoid(scalars["beta"])
    return decay(mixer, h, scalars) * (S - beta * torch.outer(S @ k, k)) + beta * torch.outer(v, k)


@rule
def efla(mixer, h, S, k, v, scalars, memory):
    energy, squash = k @ k, sigmoid if mixer.config.rate == "sigmoid" else softplus
    a = (1 - torch.exp(-squash(scalars["beta"]) * energy)) / energy
    return S - a * torch.outer(S @ k, k) + a * torch.outer(v, k)


@rule
def pgdn(mixer, h, S, k, v, scalars, memory):
    k, beta = unit(k), sigmoid(scalars["beta"])
    a = mamba_decay(scalars["energy_decay"], mixer.energy_decay.log_rate[h], mixer.energy_decay.bias[h])
    P = a * memory.get("P", torch.zeros(K, dtype=torch.float64)) + sigmoid(scalars["energy_rate"]) * k * k
    memory["P"] = P
    r = torch.log(P + 1e-6) - mixer.centre[h]
    written = torch.exp(-math.log(1.5) * r / (1 + r.abs())) * k
    return decay(mixer, h, scalars) * (S - beta * torch.outer(S @ k, k)) + beta * torch.outer(v, written)


@pytest.mark.parametrize(
    ("name", "fields", "equations"),
    [
        ("deltanet", {}, deltanet),
        ("gated-deltanet", {}, gated_deltanet),
        ("efla", {}, efla),
        ("efla", {"rate": "softplus"}, efla),
        ("pgdn", {}, pgdn),
    ],
)
def test_the_layer_is_its_equations(name: str, fields: dict, equations) -> None:
    assert_matches(build(name, **fields), equations, inputs(70, D))


def test_pgdn_with_a_flat_preconditioner_is_gated_deltanet() -> None:
    flat, plain = build("pgdn", stretch=1.0), build("gated-deltanet")
    weights = {name: y for name, y in flat.state_dict().items() if name in plain.state_dict()}
    weights["project.weight"] = weights["project.weight"][: len(plain.project.weight)]
    plain.load_state_dict(weights)
    x = inputs(70, D)
    torch.testing.assert_close(flat(x)[0], plain(x)[0], rtol=1e-11, atol=1e-12)


def test_pgdn_writes_quiet_channels_more_than_busy_ones() -> None:
    energy = torch.tensor([[[1e-9, 1e-3, 0.8, 50.0]]], dtype=torch.float64).expand(1, H, 4)
    stretch = build("pgdn")._stretch(energy)
    assert (stretch.diff(dim=-1) < 0).all()
    assert ((stretch > 1 / 1.5) & (stretch < 1.5)).all()


def test_efla_becomes_deltanet_as_keys_shrink() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 40, H, K, dtype=torch.float64, generator=generator)
    v = torch.randn(1, 40, H, V, dtype=torch.float64, generator=generator)
    beta = torch.rand(1, 40, H, dtype=torch.float64, generator=generator)
    gaps = []
    for size in (3e-2, 3e-3, 3e-4):
        keys = size * k
        euler = delta_rule(q, keys, v, beta)[0]
        exact = delta_rule(q, keys, v, exact_rate(beta, keys.square().sum(-1)))[0]
        gaps.append(((exact - euler).norm() / euler.norm()).item())
    assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.05)  # the gap is of the order of ‖k‖²
    assert gaps[1] / gaps[2] == pytest.approx(100, rel=0.05)


def test_the_exact_rate_is_smooth_down_to_a_zero_key() -> None:
    beta = torch.full((9,), 0.7, dtype=torch.float64, requires_grad=True)
    energy = torch.tensor([0, 1e-300, 1e-12, 1e-3, 0.0285, 0.0286, 0.1, 5, 1e4], dtype=torch.float64)
    energy.requires_grad_()
    rate = exact_rate(beta, energy)
    assert rate[0] == beta[0]
    assert (rate.detach() * energy.detach() <= 1).all()
    assert torch.autograd.gradcheck(exact_rate, (beta[2:], energy[2:]))
    slope = torch.autograd.grad(rate.sum(), energy)[0]
    torch.testing.assert_close(slope[0], torch.tensor(-(0.7**2) / 2, dtype=torch.float64))
    assert (slope.diff() >= 0).all()  # from −β²/2 up to 0, also across the end of the series


@pytest.mark.parametrize("form", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"])
def test_qwen3_next_computes_the_same_recurrence(form: str) -> None:
    reference = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    q, k = torch.randn(2, 2, 70, H, 16)
    v, beta = torch.randn(2, 70, H, 16), torch.rand(2, 70, H)
    log_alpha, S = -torch.rand(2, 70, H), torch.randn(2, H, 16, 16)
    theirs, last = getattr(reference, form)(
        q,
        k,
        v,
        g=log_alpha,
        beta=beta,
        initial_state=S.mT,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    q, k = torch.nn.functional.normalize(q, dim=-1), torch.nn.functional.normalize(k, dim=-1)
    ours, ours_last = delta_rule(q, k, v, beta, log_alpha, scale=16**-0.5, initial_state=S, output_final_state=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours_last, last.mT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("deltanet", {"conv_size": 0}, "conv_size must be at least 1, got 0"),
        ("gated-deltanet", {"head_key": 0}, "head_key must be at least 1, got 0"),
        ("pgdn", {"stretch": 0.5}, "stretch must be at least 1, got 0.5"),
        ("pgdn", {"strech": 2.0}, "did you mean 'stretch'"),
    ],
)
def test_bad_fields_are_refused_by_name(name: str, fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixer_config(name, **fields)
