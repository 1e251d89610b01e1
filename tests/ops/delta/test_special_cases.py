"""The systems that `delta_rule` contains, each against its own textbook loop, and what the paper claims of it."""

from math import log

import pytest
import torch
import torch.nn.functional as F
from support.recurrence import draw
from torch import Tensor

from prism.ops import delta_rule

T, H, K, V = 50, 2, 6, 5


@pytest.fixture
def x():
    return draw(1, T, H, 2, K, V)


def read(S_of_t, q: Tensor) -> Tensor:
    """Outputs of a plain loop over tokens and heads: S_of_t(S, t, h) gives the next state."""
    o = torch.zeros(1, T, H, V, dtype=torch.float64)
    for h in range(H):
        S = torch.zeros(V, K, dtype=torch.float64)
        for t in range(T):
            S = S_of_t(S, t, h)
            o[0, t, h] = S @ q[0, t, h]
    return o


@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_linear_attention_is_no_decay_and_no_erasure(x, backend: str) -> None:
    k, v = x.k[..., 0, :], x.v[..., 0, :]
    one = torch.ones(1, T, H, dtype=torch.float64)
    o, _ = delta_rule(x.q, k, v, one, erase=0 * one, backend=backend)
    torch.testing.assert_close(o, read(lambda S, t, h: S + torch.outer(v[0, t, h], k[0, t, h]), x.q))
    weights = torch.einsum("bthk,bshk->bhts", x.q, k).tril()
    torch.testing.assert_close(o, torch.einsum("bhts,bshv->bthv", weights, v))


@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_mamba2_is_decay_without_erasure(x, backend: str) -> None:
    k, v, step = x.k[..., 0, :], x.v[..., 0, :], x.beta[..., 0]
    o, _ = delta_rule(x.q, k, v, step, x.log_alpha, erase=0 * step, backend=backend)

    def update(S, t, h):
        return x.log_alpha[0, t, h].exp() * S + step[0, t, h] * torch.outer(v[0, t, h], k[0, t, h])

    torch.testing.assert_close(o, read(update, x.q))


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_deltanet_and_gated_deltanet_are_rank_1(x, backend: str, decays: bool) -> None:
    k, v, beta = x.k[..., 0, :], x.v[..., 0, :], x.beta[..., 0]
    o, _ = delta_rule(x.q, k, v, beta, x.log_alpha if decays else None, backend=backend)

    def update(S, t, h):
        key, b = k[0, t, h], beta[0, t, h]
        a = x.log_alpha[0, t, h].exp() if decays else 1.0
        return S @ (a * (torch.eye(K, dtype=torch.float64) - b * torch.outer(key, key))) + b * torch.outer(
            v[0, t, h], key
        )

    torch.testing.assert_close(o, read(update, x.q))


@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_efla_is_the_exact_flow_of_the_delta_rule(x, backend: str) -> None:
    k, v, beta = 2 * x.k[..., 0, :], x.v[..., 0, :], x.beta[..., 0]  # raw keys, not unit ones
    size = k.square().sum(-1)
    gate = -torch.expm1(-beta * size) / size
    o, _ = delta_rule(x.q, k, v, gate, backend=backend)

    def flow(S, t, h):
        """dS/dτ = (v − S k) kᵀ over a time β, by the matrix exponential of the joint linear system."""
        key = k[0, t, h]
        system = torch.zeros(K + 1, K + 1, dtype=torch.float64)
        system[:K, :K] = -torch.outer(key, key)
        system[K, :K] = key  # the state (S, v) as rows, v constant
        return (torch.cat([S, v[0, t, h, :, None]], 1) @ torch.matrix_exp(beta[0, t, h] * system))[:, :K]

    torch.testing.assert_close(o, read(flow, x.q))


@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_pgdn_erases_along_one_key_and_writes_along_another(x, backend: str) -> None:
    k, along = x.k[..., 0, :], x.k[..., 1, :]
    v, beta = x.v[..., 0, :], x.beta[..., 0]
    o, _ = delta_rule(
        x.q,
        torch.stack([k, along], 3),
        torch.stack([torch.zeros_like(v), v], 3),
        torch.stack([torch.zeros_like(beta), beta], 3),
        x.log_alpha,
        erase=beta,
        backend=backend,
    )

    def update(S, t, h):
        S = x.log_alpha[0, t, h].exp() * S
        b, key = beta[0, t, h], k[0, t, h]
        return S - b * torch.outer(S @ key, key) + b * torch.outer(v[0, t, h], along[0, t, h])

    torch.testing.assert_close(o, read(update, x.q))


@pytest.mark.parametrize("L", [1, 2, 3, 5])
def test_one_token_writes_a_matrix_of_rank_L(L: int) -> None:
    c = draw(1, 1, 3, L, 9, 8, seed=4)
    _, S = delta_rule(c.q, c.k, c.v, c.beta, c.log_alpha, output_final_state=True)
    assert torch.linalg.matrix_rank(S).tolist() == [[L] * 3]
    shared = c.k[..., :1, :].expand_as(c.k)
    _, S = delta_rule(c.q, shared, c.v, c.beta, c.log_alpha, output_final_state=True)
    assert torch.linalg.matrix_rank(S).tolist() == [[1] * 3]


def test_a_mistaken_decay_fades_and_a_mistaken_write_stays() -> None:
    """Appendix "Sensitivity": errors of A are forgotten with the state, those of B add up where nothing decays."""
    length = 2000
    c = draw(1, length, 1, 1, 8, 8, seed=5)
    k, v, beta = c.k[..., 0, :], c.v[..., 0, :], torch.ones(1, length, 1, dtype=torch.float64)
    g = torch.Generator().manual_seed(6)
    noise = 1e-3 * torch.randn(c.v[..., 0, :].shape, dtype=torch.float64, generator=g)

    def final(value: Tensor, log_alpha: Tensor) -> Tensor:
        _, S = delta_rule(c.q, k, value, beta, log_alpha, erase=0 * beta, output_final_state=True)
        return S

    keeps, forgets = torch.zeros_like(beta), torch.full_like(beta, -0.05)
    grown = (final(v + noise, keeps) - final(v, keeps)).square().sum()
    assert 0.5 < grown / (length * noise.square().sum((2, 3)).mean()) < 2  # variance in proportion to T
    wobble = 1e-3 * torch.rand(beta.shape, dtype=torch.float64, generator=g)
    early, late = slice(0, 500), slice(length - 500, length)
    errors = []
    for part in (early, late):
        wrong = forgets.clone()
        wrong[:, part] -= wobble[:, part]
        errors.append((final(v, wrong) - final(v, forgets)).norm())
    assert errors[0] < 1e-20 * errors[1]


def test_the_forgetting_operator_has_its_spectrum_between_0_and_alpha() -> None:
    g = torch.Generator().manual_seed(8)
    for _ in range(50):
        k = F.normalize(torch.randn(6, dtype=torch.float64, generator=g), dim=-1)
        alpha, eps = torch.rand(2, dtype=torch.float64, generator=g)
        log_alpha, eps_t = alpha.log().view(1, 1, 1), eps.view(1, 1, 1)
        zero = torch.zeros(1, 1, 1, 6, dtype=torch.float64)
        identity = torch.eye(6, dtype=torch.float64)[None, None]
        _, A = delta_rule(
            zero, k.view(1, 1, 1, 6), zero, 0 * eps_t, log_alpha, erase=eps_t, initial_state=identity,
            output_final_state=True,
        )  # fmt: skip
        spectrum = torch.linalg.eigvalsh(A[0, 0])
        assert spectrum.min() >= -1e-12
        assert spectrum.max() <= alpha + 1e-12
        torch.testing.assert_close(spectrum.min(), alpha * (1 - eps))


@pytest.mark.parametrize("gamma", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("w", [1, 5, 20])
def test_the_anchor_misses_at_most_the_bound(gamma: float, w: int) -> None:
    """Appendix "Approximation Error": what lies before a window of w tokens is at most γ^{w+1} / (1 − γ)."""
    length, d = 200, 8
    g = torch.Generator().manual_seed(9)
    k, v = F.normalize(torch.randn(2, 1, length, 1, d, dtype=torch.float64, generator=g), dim=-1)
    one = torch.ones(1, length, 1, dtype=torch.float64)

    def seen(first: int) -> Tensor:
        """S_{t-1} k_t for the last t, from the tokens first, …, t−1, with γ^{t−i} on token i."""
        q, keys, values = k[:, first:], k[:, first:], v[:, first:]
        write = one[:, first:].clone()
        write[:, -1] = 0
        o, _ = delta_rule(q, keys, values, write, torch.full_like(write, log(gamma)), erase=torch.zeros_like(write))
        return o[0, -1, 0]

    worst = (seen(0) - seen(length - 1 - w)).norm()
    assert 0 < worst <= gamma ** (w + 1) / (1 - gamma)
    aligned = sum(gamma**lag for lag in range(w + 1, length))  # one key, one value: the bound is met
    assert abs(aligned - gamma ** (w + 1) / (1 - gamma)) <= gamma**length / (1 - gamma) + 1e-12


def test_with_linear_keys_and_values_the_best_state_does_not_depend_on_the_sequence() -> None:
    """Appendix "Degeneracy": the delta rule goes to W_v W_k^{-1} whatever it reads."""
    d, length = 4, 3000
    g = torch.Generator().manual_seed(10)
    W_v = torch.randn(d, d, dtype=torch.float64, generator=g)
    W_k = torch.eye(d, dtype=torch.float64) + 0.2 * torch.randn(d, d, dtype=torch.float64, generator=g)
    best = W_v @ torch.linalg.inv(W_k)
    for seed in (1, 2):
        x = torch.randn(1, length, 1, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        k, v = x @ W_k.T, x @ W_v.T
        size = k.norm(dim=-1, keepdim=True)
        one = torch.ones(1, length, 1, dtype=torch.float64)
        _, S = delta_rule(k, k / size, v / size, one, output_final_state=True)
        torch.testing.assert_close(S[0, 0], best, rtol=1e-6, atol=1e-6)
