"""PRISM in both readings against Algorithm 1, written out token by token; its ablations; claims about its write."""

import inspect
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.plain import mamba_decay, randomise
from torch import Tensor, nn

from prism.errors import InputError
from prism.layers import mixer_config
from prism.layers.base.memory import Memory
from prism.layers.base.pace import Sequences, Write
from prism.layers.base.parts import half_lives
from prism.layers.prism import Prism, PrismConfig
from prism.layers.prism.fields import LITERAL
from prism.layers.prism.on_base import PrismOnBase
from prism.layers.spelling import spelled_mixer
from prism.ops import delta_rule
from prism.ops.fastweight.nonlinear_delta import nonlinear_delta

DIM = 24
FIELDS = {
    "full": {},
    "L=1": {"steps": 1},
    "L=4": {"steps": 4},
    "L=0": {"steps": 0},
    "shared keys": {"keys": "shared"},
    "base keys": {"keys": "base"},
    "no residual": {"residual": "none"},
    "identity": {"nonlinearity": "identity"},
    "no anchor": {"anchor": "none"},
    "no gain": {"gain": "none"},
    "strengths alone": {"gain": "none", "keys": "base", "residual": "none"},
    "low rank": {"solver_rank": 4},
    "window 2": {"conv_size": 2},
    "K and V of their own": {"head_key": 5, "head_value": 7},
}
# What the paper does not print: each choice the other way, and all of them together.
LETTERS = {
    "no LayerNorm on u": {"anchor_norm": "none"},
    "a window that ends before the token": {"window": "past"},
    "linear strengths": {"strength": "linear"},
    "a bias of the strengths": {"strength_bias": 3.0},
    "raw keys": {"unit_keys": False},
    "raw queries": {"unit_queries": False},
    "no bias of the gain": {"gain_bias": False},
    "a plain read": {"read": "plain"},
    "no decay": {"decay": "none"},
    "no erasure": {"forget": "none"},
    "decays from a half": {"decay_start": "zero"},
    "random taps": {"conv_start": "random"},
    "to the letter": LITERAL,
    "to the letter, L=4, window past": LITERAL | {"steps": 4, "window": "past"},
}
ABLATIONS = FIELDS | LETTERS | {f"{name}, base write": fields | {"base_write": True} for name, fields in FIELDS.items()}


def build(seed: int = 0, **fields: object) -> Memory:
    torch.manual_seed(seed)
    mixer = mixer_config("prism", heads=2, **fields).build(DIM).double()
    assert isinstance(mixer, PrismOnBase if fields.get("base_write") else Prism)
    return mixer


def convolved(weight: Tensor, x: Tensor, t: int) -> Tensor:
    window = [weight[:, -1 - j] * x[t - j] for j in range(weight.shape[1]) if t >= j]
    return F.silu(torch.stack([torch.zeros_like(x[0]), *window]).sum(0))


def from_anchor(m: nn.Module, lift: nn.Linear | None, x: Tensor, t: int) -> dict[str, Tensor]:
    """The anchor of token t, and what `m` (which has its maps) projects from it."""
    late = int(m.config.window == "past")
    u = x[t] if m.conv is None else convolved(m.conv.weight, x, t - late)
    u = F.layer_norm(u, (DIM,), m.norm.weight, m.norm.bias) if m.config.anchor_norm == "layer" else u
    rows = dict(zip(m.sizes, m.project.weight.split(list(m.sizes.values())), strict=True))
    if lift is not None:
        ups = lift.weight.split(list(m.lifted.values()))
        rows |= {n: up @ rows["low"] for n, up in zip(m.lifted, ups, strict=True)}
    value = {"anchor": u} | {name: weight @ u for name, weight in rows.items()}
    if m.gain_bias is not None:
        value["gain"] = value["gain"] + m.gain_bias.flatten()
    if isinstance(m, Prism) and m.beta_bias is not None:
        value["beta"] = value["beta"] + m.beta_bias.flatten()
    return value


def operands(m: Memory, x: Tensor, t: int) -> dict[str, Tensor]:
    """Everything about token t of x [T, D]: in the first reading from the anchor alone, in the second mostly from x."""
    if isinstance(m, Prism):
        value = from_anchor(m, m.solver, x, t)
        if m.config.decay == "none":
            return value | {"alpha": torch.ones(m.config.heads, dtype=x.dtype)}
        return value | {"alpha": torch.sigmoid(value["decay"] + m.decay_bias)}
    H, rows = (
        m.config.heads,
        dict(zip(m.sizes, (x @ m.project.weight.T).split(list(m.sizes.values()), -1), strict=True)),
    )
    qkv = convolved(m.conv.weight, torch.cat([rows[name] for name in "qkv"], -1), t)
    value = dict(zip("qkv", qkv.split([m.sizes[name] for name in "qkv"]), strict=True))
    value |= {name: rows[name][t] for name in ("gate", "beta")}
    value["alpha"] = mamba_decay(rows["decay"][t], m.decay.log_rate, m.decay.bias)
    if m.solver is not None:
        own = from_anchor(m.solver, m.solver.lift, x, t)
        strengths = own["beta"].view(H, -1) + m.solver.beta_bias
        value |= own | {"beta": torch.cat([value["beta"].view(H, 1), strengths], 1).flatten()}
    return value


def algorithm_1(m: Memory, x: Tensor) -> Tensor:
    """The paper's pseudocode for one sequence [T, D], one token and one head at a time, from the layer's weights."""
    c, H, K, V = m.config, m.config.heads, m.K, m.V
    L, B = c.steps, int(c.base_write)
    outputs, S = [], torch.zeros(H, V, K, dtype=x.dtype)
    for t in range(len(x)):
        value = operands(m, x, t)
        read = []
        for h in range(H):
            head = {name: y.view(H, -1)[h] for name, y in value.items()}
            q = head["q"] / head["q"].norm() if c.unit_queries else head["q"]
            erased = head["k"] / (head["k"].norm() if c.unit_keys else 1)
            free = [y / (y.norm() if c.unit_keys else 1) for y in head["keys"].view(-1, K)] if c.free_keys else []
            if c.keys == "independent":
                k = [erased, *free]
            elif c.keys == "shared" and B:
                k = [erased] + free * L
            else:
                k = [erased] * max(1, L + B)
            v, beta = head["v"], head["beta"].sigmoid() if c.strength == "sigmoid" else head["beta"]
            r = v if c.residual == "none" or L == 0 else v - head["anchor"]
            delta = [v] if B or L == 0 else []
            for l in range(L):
                d = head["gain"].view(L, V)[l] * r if c.gain == "learned" else r
                d = F.gelu(d) if c.nonlinearity == "gelu" else d
                delta.append(d)
                if c.residual == "subtract":
                    r = r - d
            once = beta[0] if c.forget == "first" else 0
            forget = head["alpha"] * (torch.eye(K, dtype=x.dtype) - once * torch.outer(erased, erased))
            write = sum(b * torch.outer(d, key) for b, d, key in zip(beta, delta, k, strict=True))
            S = torch.cat([S[:h], (S[h] @ forget + write)[None], S[h + 1 :]])
            o = S[h] @ q
            if c.read == "gated":
                o = o / (o.square().mean() + 1e-6).sqrt() * m.read.norm.weight * F.silu(head["gate"])
            read.append(o)
        outputs.append(m.out.weight @ torch.cat(read))
    return torch.stack(outputs)


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_layer_is_algorithm_1(name: str) -> None:
    m, x = randomise(build(**ABLATIONS[name])), torch.randn(20, DIM, dtype=torch.float64)
    torch.testing.assert_close(m(x[None])[0][0], algorithm_1(m, x), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_uses_every_parameter(name: str) -> None:
    m = build(**ABLATIONS[name])
    m(torch.randn(2, 20, DIM, dtype=torch.float64))[0].square().sum().backward()
    for parameter_name, parameter in m.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


def test_to_the_letter_the_weights_are_those_that_algorithm_1_names() -> None:
    """ShortConv, a map to q, v, α, k^l, p^l and β^l, the output map: no norm, no gate, no bias but the decay's."""
    names = {name for name, _ in spelled_mixer("prism:literal", heads=2).build(DIM).named_parameters()}
    assert names == {"conv.weight", "project.weight", "decay_bias", "out.weight"}


def test_a_window_that_ends_before_the_token_does_not_see_it() -> None:
    m = build(window="past")
    x = torch.randn(1, 9, DIM, dtype=torch.float64)
    changed = x.clone()
    changed[0, 5] += 1
    first, second = m(x)[0][0], m(changed)[0][0]
    assert torch.equal(first[:6], second[:6])
    assert not torch.allclose(first[6:], second[6:])


def test_beside_a_base_write_gated_deltanets_own_choices_stay() -> None:
    for name, value in LITERAL.items():
        if name != "solver_rank":
            with pytest.raises(InputError, match=f"leave {name} as it is"):
                PrismConfig(base_write=True, **{name: value})


def written(m: Memory, x: Tensor) -> Write:
    """What the layer gives to the recurrence."""
    return m.operands(x, None, Sequences(), m.project).write


def ranks_of_one_write(m: Memory) -> list[int]:
    write = written(m, torch.randn(1, 1, DIM, dtype=torch.float64))
    B = torch.einsum("nthl,nthlv,nthlk->nthvk", write.beta, write.v, write.k)
    return torch.linalg.matrix_rank(B)[0, 0].tolist()


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


@pytest.mark.parametrize("fields", [{}, {"head_key": 5, "head_value": 7}])
def test_a_base_write_without_steps_is_a_gated_deltanet_layer(fields: dict[str, int]) -> None:
    layers = []
    for name, more in (("prism", {"steps": 0, "base_write": True}), ("gated-deltanet", {})):
        torch.manual_seed(0)
        layers.append(mixer_config(name, heads=2, **fields, **more).build(DIM))
    ours, theirs = layers
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, weight in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight), name
    x = torch.randn(2, 30, DIM)
    (y, state), (z, other) = ours(x), theirs(x)
    assert all(torch.equal(a, b) for a, b in zip((y, *state), (z, *other), strict=True))
    assert torch.equal(ours.step(x[:, 0], state)[0], theirs.step(x[:, 0], other)[0])
    assert (ours.flops(), ours.state_size()) == (theirs.flops(), theirs.state_size())


def with_and_without_steps() -> tuple[Memory, Memory]:
    """A layer of the second reading, and its base alone."""
    m, plain = build(base_write=True), build(base_write=True, steps=0)
    plain.load_state_dict({name: y for name, y in m.state_dict().items() if not name.startswith("solver.")})
    return m, plain


def test_beside_a_base_write_the_layer_begins_near_gated_deltanet() -> None:
    m, plain = with_and_without_steps()
    x = torch.randn(2, 1000, DIM, dtype=torch.float64)
    near, exact = m(x)[0], plain(x)[0]
    assert 1e-4 < (near - exact).norm() / exact.norm() < 0.05


def test_solver_steps_leave_the_base_beside_them_as_it_is() -> None:
    m, plain = with_and_without_steps()
    x = torch.randn(1, 20, DIM, dtype=torch.float64)
    write, base = written(m, x), written(plain, x)
    for ours, theirs in ((write.k[..., 0, :], base.k), (write.v[..., 0, :], base.v), (write.beta[..., 0], base.beta)):
        assert torch.equal(ours, theirs)
    assert torch.equal(write.q, base.q)
    assert torch.equal(write.log_alpha, base.log_alpha)


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
    assert half_lives(1).sigmoid() ** 64 == pytest.approx(0.5, rel=1e-3)


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


def test_erasing_where_it_writes_is_the_serial_solver_on_a_linear_state() -> None:
    """Identity φ, gain 1, one direction: L steps of S ← S + β (v − S k) kᵀ, what the amortised write stands for."""
    torch.manual_seed(0)
    config = PrismConfig(
        heads=2, steps=3, keys="base", gain="none", nonlinearity="identity", forget="all", residual="state"
    )
    mixer = config.build(16).double()
    x = torch.randn(2, 30, 16, dtype=torch.float64)
    write, _ = mixer.write(mixer.norm(x))
    o, _ = delta_rule(**write.operands())
    one = (write.q, write.k[..., 0, :], write.v[..., 0, :])
    want, _ = nonlinear_delta(*one, write.beta, write.log_alpha, steps=3, nonlinearity="identity")
    torch.testing.assert_close(o, want, rtol=0, atol=1e-10)


def test_reflecting_doubles_the_erasure_alone() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    for forget in ("first", "all"):
        torch.manual_seed(1)
        write, _ = PrismConfig(heads=2, forget=forget, reflect=True).build(16).double().write(x)
        beta = write.beta if forget == "all" else write.beta[..., 0]
        assert write.erase is not None
        torch.testing.assert_close(write.erase, 2 * beta)


def test_a_bias_of_the_strengths_begins_near_reflections() -> None:
    torch.manual_seed(0)
    mixer = PrismConfig(heads=2, forget="all", reflect=True, strength_bias=3.0).build(16)
    write, _ = mixer.write(torch.zeros(1, 5, 16))
    assert write.erase is not None
    torch.testing.assert_close(write.erase, torch.full((1, 5, 2, 2), 2 / (1 + math.exp(-3))))


def test_a_residual_left_to_the_state_needs_every_direction_erased() -> None:
    with pytest.raises(InputError, match="needs forget = 'all'"):
        PrismConfig(residual="state")


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(InputError, match="reflect doubles an erasure"):
        PrismConfig(forget="none", reflect=True)
    with pytest.raises(InputError, match="window 'past' is the convolution's"):
        PrismConfig(window="past", anchor="none")
