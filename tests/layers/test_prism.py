"""PRISM against Algorithm 1 written out token by token, its ablations, and the claims about its write."""

import inspect
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from prism.errors import InputError
from prism.layers import mixer_config
from prism.layers.prism import Prism, PrismConfig

DIM = 24
ABLATIONS = {
    "full": {},
    "L=1": {"steps": 1},
    "L=4": {"steps": 4},
    "L=0": {"steps": 0},
    "base write": {"base_write": True},
    "shared keys": {"keys": "shared"},
    "shared keys beside a base write": {"keys": "shared", "base_write": True},
    "base keys": {"keys": "base", "base_write": True},
    "no residual": {"residual": "none"},
    "identity": {"nonlinearity": "identity"},
    "no anchor": {"anchor": "none"},
    "no gain": {"gain": "none"},
    "low rank": {"solver_rank": 4},
    "window 2": {"conv_size": 2},
    "K and V of their own": {"head_key": 5, "head_value": 7},
}


def build(seed: int = 0, **fields: object) -> Prism:
    torch.manual_seed(seed)
    mixer = mixer_config("prism", heads=2, **fields).build(DIM).double()
    assert isinstance(mixer, Prism)
    return mixer


def algorithm_1(m: Prism, x: Tensor) -> Tensor:
    """The paper's pseudocode for one sequence [T, D], one token and one head at a time, from the layer's weights."""
    c, H, K, V = m.config, m.config.heads, m.K, m.V
    L, B = c.steps, int(c.base_write)
    outputs, S = [], torch.zeros(H, V, K, dtype=x.dtype)
    for t in range(len(x)):
        u = x[t]
        if m.conv is not None:
            window = [m.conv.weight[:, -1 - j] * x[t - j] for j in range(c.conv_size) if t >= j]
            u = F.silu(torch.stack(window).sum(0))
        u = F.layer_norm(u, (DIM,), m.norm.weight, m.norm.bias)
        rows = dict(zip(m.sizes, m.project.weight.split(list(m.sizes.values())), strict=True))
        if m.solver is not None:
            ups = m.solver.weight.split(list(m.solver_sizes.values()))
            rows |= {n: up @ rows["low"] for n, up in zip(m.solver_sizes, ups, strict=True)}
        value = {name: weight @ u for name, weight in rows.items()}
        read = []
        for h in range(H):
            head = {name: y.view(H, -1)[h] for name, y in value.items()}
            q = head["q"] / head["q"].norm()
            erased = head["k"] / head["k"].norm()
            free = [y / y.norm() for y in head["keys"].view(-1, K)] if c.free_keys else []
            if c.keys == "independent":
                k = [erased, *free]
            elif c.keys == "shared" and B:
                k = [erased] + free * L
            else:
                k = [erased] * max(1, L + B)
            v, beta = head["v"], head["beta"].sigmoid()
            anchor = head["anchor"] if "anchor" in head else u.view(H, -1)[h][:V]
            r = v if c.residual == "none" else v - anchor
            delta = [v] if B or L == 0 else []
            for l in range(L):
                p = 1.0 if m.gain_bias is None else head["gain"].view(L, V)[l] + m.gain_bias[h, l]
                d = p * r
                d = F.gelu(d) if c.nonlinearity == "gelu" else d
                delta.append(d)
                if c.residual == "subtract":
                    r = r - d
            alpha = torch.sigmoid(head["decay"] + m.decay_bias[h])
            forget = alpha * (torch.eye(K, dtype=x.dtype) - beta[0] * torch.outer(erased, erased))
            write = sum(b * torch.outer(d, key) for b, d, key in zip(beta, delta, k, strict=True))
            S = torch.cat([S[:h], (S[h] @ forget + write)[None], S[h + 1 :]])
            o = S[h] @ q
            o = o / (o.square().mean() + 1e-6).sqrt() * m.read.norm.weight
            read.append(o * F.silu(head["gate"]))
        outputs.append(m.out.weight @ torch.cat(read))
    return torch.stack(outputs)


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_layer_is_algorithm_1(name: str) -> None:
    m, x = build(**ABLATIONS[name]), torch.randn(20, DIM, dtype=torch.float64)
    torch.testing.assert_close(m(x[None])[0][0], algorithm_1(m, x), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_uses_every_parameter(name: str) -> None:
    m = build(**ABLATIONS[name])
    m(torch.randn(2, 20, DIM, dtype=torch.float64))[0].square().sum().backward()
    for parameter_name, parameter in m.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


def ranks_of_one_write(m: Prism) -> list[int]:
    write, _ = m.write(m.norm(torch.randn(1, DIM, dtype=torch.float64)))
    B = torch.einsum("nhl,nhlv,nhlk->nhvk", write.beta, write.v, write.k)
    return torch.linalg.matrix_rank(B)[0].tolist()


@pytest.mark.parametrize("L", [1, 2, 3, 4])
def test_the_write_has_rank_L_and_rank_1_with_shared_keys(L: int) -> None:
    assert ranks_of_one_write(build(steps=L)) == [L, L]
    assert ranks_of_one_write(build(steps=L, keys="shared")) == [1, 1]
    assert ranks_of_one_write(build(steps=L, base_write=True)) == [L + 1, L + 1]
    assert ranks_of_one_write(build(steps=L, base_write=True, keys="shared")) == [2, 2]
    assert ranks_of_one_write(build(steps=L, base_write=True, keys="base")) == [1, 1]


def test_one_linear_step_without_gain_or_residual_is_gated_deltanets_write() -> None:
    solver = build(steps=1, nonlinearity="identity", gain="none", residual="none")
    plain = build(steps=0)
    plain.load_state_dict(solver.state_dict())
    x = torch.randn(2, 30, DIM, dtype=torch.float64)
    torch.testing.assert_close(solver(x)[0], plain(x)[0], rtol=0, atol=0)


def test_gates_keep_the_forgetting_operator_a_contraction() -> None:
    write, _ = build().write(torch.randn(500, DIM, dtype=torch.float64) * 10)
    assert (write.log_alpha <= 0).all()
    assert ((write.beta >= 0) & (write.beta <= 1)).all()
    assert (write.k.norm(dim=-1) <= 1 + 1e-12).all()


def test_half_lives_spread_from_a_few_to_a_thousand_tokens() -> None:
    m = PrismConfig(heads=8).build(64)
    assert isinstance(m, Prism)
    half = (0.5 ** torch.tensor(1.0)).log() / F.logsigmoid(m.decay_bias.double())
    torch.testing.assert_close(half[[0, -1]], torch.tensor([4.0, 1024.0]).double(), rtol=1e-3, atol=0)
    assert (half.diff() > 0).all()


def test_a_low_rank_solver_costs_a_few_percent_more_than_gated_deltanet() -> None:
    def count(name: str, **fields: object) -> int:
        return sum(p.numel() for p in mixer_config(name, heads=8, **fields).build(768).parameters())

    extra = count("prism", steps=2) - count("gated-deltanet")
    assert 0 < extra < 0.2 * count("gated-deltanet")
    assert count("prism", steps=2, solver_rank=None) - count("gated-deltanet") > 0.4 * count("gated-deltanet")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": -1}, "steps must be at least 0, got -1"),
        ({"keys": "independant"}, "did you mean 'independent'"),
        ({"gain": "learnt"}, "did you mean 'learned'"),
        ({"conv_size": 0}, "conv_size must be at least 1, got 0"),
        ({"stepz": 2}, "mixer 'prism' has no field 'stepz': did you mean 'steps'"),
    ],
)
def test_wrong_fields_are_refused_with_the_right_ones(
    fields: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrismConfig, "__init__", inspect.unwrap(PrismConfig.__init__))  # no type checks
    with pytest.raises(InputError, match=message):
        mixer_config("prism", **fields)


def test_a_width_that_heads_do_not_divide_needs_head_sizes() -> None:
    with pytest.raises(InputError, match="dim 10 does not divide by heads 4"):
        PrismConfig(heads=4).build(10)
    PrismConfig(heads=4, head_key=3, head_value=2).build(10)


def test_an_ablation_is_one_field_away() -> None:
    full = PrismConfig()
    assert replace(full, anchor="none").steps == full.steps
