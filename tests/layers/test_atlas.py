"""ATLAS against its definition: one token at a time, every inner gradient by autograd."""

from copy import deepcopy
from itertools import combinations_with_replacement

import pytest
import torch
import torch.nn.functional as F
from support.plain import randomise
from torch import Tensor

from prism.layers import mixer_config
from prism.layers.atlas import Atlas, Features
from prism.ops import delta_rule
from prism.ops.fastweight.atlas import atlas, newton_schulz

DIM, HEADS = 8, 2


def build(**fields) -> Atlas:
    return randomise(mixer_config("atlas", heads=HEADS, **fields).build(DIM))  # type: ignore[return-value]


def features(mixer: Atlas, x: Tensor) -> Tensor:
    terms = []
    for i, a in enumerate(mixer.features.coefficients, 1):
        if mixer.config.terms == "powers":
            terms += [a * x_j**i for x_j in x]
        else:
            for factors in combinations_with_replacement(range(len(x)), i):
                terms.append(a * torch.stack([x[j] for j in factors]).prod())
    return torch.stack(terms)


def schulz(Z: Tensor) -> Tensor:
    X = Z / (Z.square().sum().sqrt() + 1e-7)
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.775 * A + 2.0315 * A @ A) @ X
    return X


def one_head(mixer: Atlas, x: Tensor, h: int) -> Tensor:
    """What one head reads for one sequence x [T, D], straight from the equations, M of shape [V, F]."""
    config, d, W = mixer.config, mixer.d, mixer.config.conv_size
    qkv, _, *gates = (x @ mixer.project.weight.T).split(mixer.sizes, -1)
    given = {name: gate[:, h] for name, gate in zip(mixer.gates, gates, strict=True)}
    seen = F.pad(qkv, (0, 0, W - 1, 0))
    qkv = torch.stack([F.silu((seen[t : t + W].T * mixer.conv.weight).sum(-1)) for t in range(len(x))])
    q, k, v = qkv.view(-1, 3, HEADS, d)[:, :, h].unbind(1)
    M = torch.zeros(d, mixer.features.width, dtype=torch.float64, requires_grad=True)
    Z, outputs = torch.zeros_like(M), []
    for t in range(len(x)):
        loss = torch.zeros((), dtype=torch.float64)
        for i in range(max(0, t - config.window + 1), t + 1):
            gamma = torch.sigmoid(given["weight"][i]) / (2 * config.window)
            loss = loss + gamma * (M @ features(mixer, F.normalize(k[i], dim=-1)) - v[i]).square().sum()
        (gradient,) = torch.autograd.grad(loss, M, create_graph=True)
        theta = torch.sigmoid(given["momentum"][t]) if config.momentum else 0.0
        Z = theta * Z - gradient
        step = Z
        if config.newton_schulz:
            step = torch.sigmoid(given["step"][t] + mixer.step_bias[h]) * schulz(Z)
        M = torch.sigmoid(given["keep"][t] + mixer.keep_bias[h]) * M + step
        outputs.append(M @ features(mixer, F.normalize(q[t], dim=-1)))
    return torch.stack(outputs)


def definition(mixer: Atlas, x: Tensor) -> Tensor:
    rows = [torch.stack([one_head(mixer, row, h) for h in range(HEADS)], -2) for row in x]
    gate = mixer.project(x).split(mixer.sizes, -1)[1]
    return mixer.out(mixer.read(torch.stack(rows), gate))


VARIANTS = [
    {},
    {"window": 1},
    {"window": 3, "newton_schulz": False, "momentum": False},
    {"window": 3, "degree": 1},
    {"window": 2, "degree": 3, "terms": "monomials"},
]


@pytest.mark.parametrize("fields", VARIANTS)
def test_the_loop_equals_the_equations_with_the_same_outer_gradients(fields: dict) -> None:
    mixer = build(**fields)
    x = torch.randn(1, 9, DIM, dtype=torch.float64, requires_grad=True)
    ours, theirs = mixer(x)[0], definition(mixer, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    leaves = [x, *mixer.parameters()]
    pairs = zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (ours, theirs)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_window_one_without_newton_schulz_momentum_and_decay_is_the_delta_rule() -> None:
    B, T, H, K, V = 2, 30, 3, 5, 4
    q, k = torch.randn(2, B, T, H, K, dtype=torch.float64).unbind()
    v, beta = torch.randn(B, T, H, V, dtype=torch.float64), torch.rand(B, T, H, dtype=torch.float64)
    k, zero, one = F.normalize(k, dim=-1), torch.zeros_like(beta), torch.ones_like(beta)
    M = torch.randn(B, H, K, V, dtype=torch.float64)
    state = (M, torch.zeros_like(M), M.new_zeros(B, H, 0, K + V + 1))
    o, (after, _, _) = atlas(q, k, v, beta / 2, zero, one, state, iterations=0)
    expected, S = delta_rule(
        q, k, v, beta, initial_state=M.mT.contiguous(), output_final_state=True, backend="reference"
    )
    torch.testing.assert_close(o, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(after.mT, S, rtol=1e-10, atol=1e-10)


def test_omeganet_is_the_closed_form_of_its_window() -> None:
    T, K, V, c = 12, 4, 3, 3
    k, v = torch.randn(T, K, dtype=torch.float64), torch.randn(T, V, dtype=torch.float64)
    gamma, alpha = 0.1 * torch.rand(T, dtype=torch.float64), torch.rand(T, dtype=torch.float64)
    M = torch.zeros(V, K, dtype=torch.float64)
    for t in range(T):  # M (α I − Σ 2γ k kᵀ) + Σ 2γ v kᵀ
        near = slice(max(0, t - c + 1), t + 1)
        kk = torch.einsum("i,ij,ik->jk", 2 * gamma[near], k[near], k[near])
        M = M @ (alpha[t] * torch.eye(K, dtype=k.dtype) - kk) + torch.einsum(
            "i,ij,ik->jk", 2 * gamma[near], v[near], k[near]
        )
    one_head = [x[None, :, None] for x in (k, k, v, gamma, torch.zeros_like(gamma), alpha)]
    zeros = torch.zeros(1, 1, K, V, dtype=torch.float64)
    state = (zeros, zeros, zeros.new_zeros(1, 1, c - 1, K + V + 1))
    _, (after, _, _) = atlas(*one_head, state, iterations=0)
    torch.testing.assert_close(after[0, 0].T, M, rtol=1e-10, atol=1e-10)


def test_steps_have_size_one_as_printed_unless_another_is_given() -> None:
    q, k, v = torch.randn(3, 1, 6, 1, 4, dtype=torch.float64).unbind()
    gates = [0.5 * torch.ones(1, 6, 1, dtype=torch.float64)] * 3
    zeros = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    state = (zeros, zeros, zeros.new_zeros(1, 1, 1, 9))
    printed, (M, Z, _) = atlas(q[:, :1], k[:, :1], v[:, :1], *(g[:, :1] for g in gates), state)
    torch.testing.assert_close(M[0, 0].T, schulz(Z[0, 0].T), rtol=1e-10, atol=1e-10)
    one, _ = atlas(q, k, v, *gates, state, eta=torch.ones_like(gates[0]))
    torch.testing.assert_close(one, atlas(q, k, v, *gates, state)[0])
    torch.testing.assert_close(one[:, :1], printed)


def test_with_steps_of_one_rounding_takes_over_and_with_steps_of_a_tenth_it_does_not() -> None:
    """At token 70, how far float32 is from float64: in five draws 0.12 to 1.2 as printed, about 1e-6 as it starts."""
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for printed in gaps:
        for seed in range(5):
            torch.manual_seed(seed)
            narrow = mixer_config("atlas", heads=2).build(16)
            exact = deepcopy(narrow).double()
            if printed:
                narrow.step_bias = exact.step_bias = None
            x = torch.randn(1, 70, 16)
            with torch.no_grad():
                one, other = narrow(x)[0][0, -1], exact(x.double())[0][0, -1]
            gaps[printed].append(float((one - other).norm() / other.norm()))
    assert min(gaps[True]) > 0.01
    assert max(gaps[False]) < 1e-4


@pytest.mark.parametrize("shape", [(3, 7, 4), (3, 4, 7)])
def test_newton_schulz_brings_singular_values_near_one_and_keeps_their_vectors(shape: tuple) -> None:
    Z = torch.randn(*shape, dtype=torch.float64)
    U, s, Vh = torch.linalg.svd(Z, full_matrices=False)
    X = newton_schulz(Z)
    values = torch.diagonal(U.mT @ X @ Vh.mT, dim1=-2, dim2=-1)
    torch.testing.assert_close(U @ torch.diag_embed(values) @ Vh, X, rtol=1e-9, atol=1e-10)
    large = s > 0.05 * s[:, :1]
    assert ((values > 0.6) & (values < 1.25))[large].all()
    assert not newton_schulz(torch.zeros(1, 3, 2)).any()


def test_features_start_as_the_terms_of_the_exponential_series() -> None:
    x, y = torch.randn(2, 3, dtype=torch.float64).unbind()
    powers = Features(3, 3, "powers").double()
    torch.testing.assert_close(powers(x), torch.cat([x, x**2 / 2, x**3 / 6]), rtol=1e-7, atol=1e-7)
    products = Features(3, 2, "monomials").double()
    assert products.width == 3 + 6
    # the six distinct products of degree two hold all of (x·y)²: those of two coordinates occur twice in it
    twice = torch.tensor([1.0, 2, 2, 1, 2, 1], dtype=torch.float64)
    square = (4 * twice * products(x)[3:] * products(y)[3:]).sum()
    torch.testing.assert_close(square, (x @ y) ** 2, rtol=1e-10, atol=1e-10)
