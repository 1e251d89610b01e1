"""The paper's theory of the recurrence itself, measured: rank, errors that fade or stay, the anchor, degeneracy."""

from dataclasses import dataclass
from math import e

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from prism.layers.prism import PrismConfig
from prism.ops import delta_rule

Floats = NDArray[np.float64]


@torch.no_grad()
def write_ranks(most: int = 8, width: int = 8) -> dict[str, list[int]]:
    """The rank of what one token writes, for L = 1 … `most`, from a layer's own operands; by the kind of keys."""
    found: dict[str, list[int]] = {}
    for keys in ("independent", "shared"):
        found[keys] = []
        for steps in range(1, most + 1):
            torch.manual_seed(steps)
            layer = PrismConfig(heads=1, steps=steps, keys=keys).build(width).double()  # type: ignore[arg-type]
            u = layer.norm(torch.randn(1, width, dtype=torch.float64))  # type: ignore[operator]
            write, _ = layer.write(u)  # type: ignore[operator]
            B = torch.einsum("nhl,nhlv,nhlk->nhvk", write.beta, write.v, write.k)[0, 0]
            found[keys].append(int(torch.linalg.matrix_rank(B, atol=1e-10 * float(B.norm()), rtol=0)))
    return found


@torch.no_grad()
def forget_ranks(most: int = 8, width: int = 8) -> dict[str, list[int]]:
    """The rank of what one token takes out of the state, I − A_t / α_t, for L = 1 … `most`; by what is erased."""
    found: dict[str, list[int]] = {}
    for forget in ("first", "all"):
        found[forget] = []
        for steps in range(1, most + 1):
            torch.manual_seed(steps)
            layer = PrismConfig(heads=1, steps=steps, forget=forget).build(width).double()  # type: ignore[arg-type]
            write, _ = layer.write(torch.randn(1, width, dtype=torch.float64))  # type: ignore[operator]
            strength = write.beta[0, 0] if write.erase is None else write.erase[0, 0]
            kept = torch.eye(width, dtype=torch.float64)
            for epsilon, k in zip(strength[: steps if forget == "all" else 1], write.k[0, 0], strict=False):
                kept = kept - epsilon * torch.outer(kept @ k, k)
            gone = torch.eye(width, dtype=torch.float64) - kept
            found[forget].append(int(torch.linalg.matrix_rank(gone, atol=1e-10, rtol=0)))
    return found


def inverse_entries(epsilon: float, *, length: int = 64, width: int = 4, size: float = 1.0, seed: int = 0) -> float:
    """The largest entry, off the diagonal, of the inverse that a chunk solves: (I + strict_lower(ε K Kᵀ))⁻¹.

    Entry (i, j) is −ε k_iᵀ Π_{j<m<i} (I − ε k_m k_mᵀ) k_j: with ‖k‖ ≤ 1 and ε ≤ 2 no factor expands, and it is at
    most ε. Keys are random and of length `size`.
    """
    g = torch.Generator().manual_seed(seed)
    k = size * F.normalize(torch.randn(length, width, dtype=torch.float64, generator=g), dim=-1)
    core = torch.eye(length, dtype=torch.float64) + (epsilon * k @ k.T).tril(-1)
    inverse = torch.linalg.solve_triangular(core, torch.eye(length, dtype=torch.float64), upper=False)
    return float(inverse.tril(-1).abs().max())


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """What becomes of errors, by simulation of a channel h ← (λ + ε) h, λ = 1 − γ, ε of variance Kγ²."""

    lags: Floats
    """1 … T."""
    envelope: Floats
    """[T]: Σ_{τ≤T} max_γ V(τ, γ): at each lag the γ that is worst for it, as in the theorem."""
    envelope_bound: Floats
    """[T]: 4 K e^{-2} Σ_{τ≤T} 1/τ, plus what the theorem's bound misses at the first lag."""
    channel: Floats
    """[T]: max_γ Σ_{τ≤T} V(τ, γ): the worst single channel."""
    written: Floats
    """[T]: variance of a sum of T mistaken writes in a channel that keeps everything (γ = 0)."""
    written_bound: Floats
    """[T]: T σ²."""
    first_lag: float
    """max_γ V(1, γ) over the theorem's 4 K e^{-2}: above 1, the theorem's bound fails at this lag."""


def forgetting(T: int = 512, K: float = 0.01, trials: int = 2000, seed: int = 0) -> Forgetting:
    """Perturbed forgetting and perturbed writing, over a grid of γ from 1/T to 1."""
    rng = np.random.default_rng(seed)
    lags = np.arange(1, T + 1, dtype=np.float64)
    variance = np.stack([_product_variance(gamma, K, T, trials, rng) for gamma in np.geomspace(1 / T, 1, 40)])
    noise = K**0.5 * rng.standard_normal((trials, T))
    first = float(variance[:, 0].max() / (4 * K / e**2))
    return Forgetting(
        lags=lags,
        envelope=variance.max(0).cumsum(),
        # at τ = 1 the maximum over γ ≤ 1 is K, where the theorem's bound has its maximum at γ = 2
        envelope_bound=4 * K / e**2 * (1 / lags).cumsum() + K * (1 - 4 / e**2),
        channel=variance.cumsum(1).max(0),
        written=noise.cumsum(1).var(0),
        written_bound=K * lags,
        first_lag=first,
    )


def _product_variance(gamma: float, K: float, T: int, trials: int, rng: np.random.Generator) -> Floats:
    factors = (1 - gamma) + K**0.5 * gamma * rng.standard_normal((trials, T))
    variance: Floats = factors.cumprod(1).var(0)
    return variance


@dataclass(frozen=True, kw_only=True)
class Anchors:
    """How far a window of w tokens is from the memory that it stands for, for one γ."""

    gamma: float
    windows: list[int]
    typical: list[float]
    """Mean over random unit keys and values."""
    worst: list[float]
    """One key and one value throughout."""
    bound: list[float]
    """γ^{w+1} / (1 − γ)."""


def anchor_errors(gamma: float, windows: tuple[int, ...] = (1, 2, 3, 5, 8, 12, 20, 32), seed: int = 0) -> Anchors:
    """‖Σ_{i<t−w} γ^{t−i} v_i (k_i·k_t)‖: the part of S_{t−1} k_t that a window of w tokens does not see."""
    length, width, trials = 400, 8, 64
    g = torch.Generator().manual_seed(seed)
    k, v = F.normalize(torch.randn(2, trials, length, width, dtype=torch.float64, generator=g), dim=-1)
    weight = gamma ** torch.arange(length - 1, 0, -1, dtype=torch.float64)
    terms = weight[:, None] * v[:, :-1] * (k[:, :-1] @ k[:, -1, :, None])  # [trials, lags, width]

    def unseen(parts: Tensor, window: int) -> Tensor:
        return parts[:, : length - 1 - window].sum(1)

    aligned = weight.view(1, -1, 1)
    return Anchors(
        gamma=gamma,
        windows=list(windows),
        typical=[float(unseen(terms, w).norm(dim=-1).mean()) for w in windows],
        worst=[float(unseen(aligned, w)) for w in windows],
        bound=[gamma ** (w + 1) / (1 - gamma) for w in windows],
    )


@dataclass(frozen=True, kw_only=True)
class Degeneracy:
    """Where the delta rule goes on two different sequences."""

    tokens: list[int]
    to_optimum: dict[str, list[float]]
    """‖S_t − W_v W_k^{-1}‖ / ‖W_v W_k^{-1}‖ for each kind of value, the first sequence."""
    apart: dict[str, list[float]]
    """‖S_t − S'_t‖ / ‖S_t‖ between the two sequences."""


def degeneracy(length: int = 1500, width: int = 4) -> Degeneracy:
    """Keys and values linear in the token; then values GELU(W_v x), which no linear map of the key can give."""
    g = torch.Generator().manual_seed(10)
    W_v = torch.randn(width, width, dtype=torch.float64, generator=g)
    W_k = torch.eye(width, dtype=torch.float64) + 0.2 * torch.randn(width, width, dtype=torch.float64, generator=g)
    best = W_v @ torch.linalg.inv(W_k)
    x = torch.randn(2, length, 1, width, dtype=torch.float64, generator=g)
    k = x @ W_k.T
    size = k.norm(dim=-1, keepdim=True)
    stops = sorted({int(n) for n in np.geomspace(1, length, 25)})
    one = torch.ones(2, length, 1, dtype=torch.float64)
    to_optimum: dict[str, list[float]] = {}
    apart: dict[str, list[float]] = {}
    for name, v in (("linear", x @ W_v.T), ("nonlinear", F.gelu(x @ W_v.T))):
        states = [_state(k / size, v / size, one, stop) for stop in stops]
        to_optimum[name] = [float((S[0] - best).norm() / best.norm()) for S in states]
        apart[name] = [float((S[0] - S[1]).norm() / S[0].norm()) for S in states]
    return Degeneracy(tokens=stops, to_optimum=to_optimum, apart=apart)


def _state(k: Tensor, v: Tensor, beta: Tensor, stop: int) -> Tensor:
    """[2, V, K]: the states after `stop` tokens."""
    part = (y[:, :stop] for y in (k, k, v, beta))
    _, S = delta_rule(*part, output_final_state=True, backend="chunk")
    assert S is not None
    return S[:, 0]
