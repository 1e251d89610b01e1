"""Titans' memory: Z_t = η_t Z_{t−1} − θ_t ∇‖M(k_t) − v_t‖², M_t = (1 − α_t) M_{t−1} + Z_t, read o_t = M_t(q_t).

The gradients of a chunk of b tokens are taken at the weights before it (b = 1: the last token's, as the equations
say). Then, with products of decays as in `chunk.py`, E_ij = Π_{j<n≤i} η_n and D_ti = Π_{i<n≤t} (1 − α_n),

    Z_i = E_i0 Z + Σ_j E_ij u_j        M_t = D_t0 M + Σ_i D_ti Z_i        u_j = −θ_j X_jᵀ G_j

so that M_t weighs gradient j by (D E)_tj, and all of a chunk is computed at once.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.checks import compute_dtype
from prism.ops.common.decays import decay_matrix
from prism.ops.common.packing import Limits, read_bounds
from prism.ops.common.precision import own_precision
from prism.ops.fastweight.memory import Mix, backward, read, remember
from prism.ops.fastweight.walk import MiniBatches, Parts, Turn


def titans(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    rate: Float[Tensor, "B T H"],
    log_momentum: Float[Tensor, "B T H"] | None,
    log_keep: Float[Tensor, "B T H"] | None,
    state: tuple[Tensor, ...],
    *,
    chunk: int,
    cu_seqlens: Limits | None = None,
) -> tuple[Float[Tensor, "B T H V"], tuple[Tensor, ...]]:
    """Whole sequences; differentiable in every tensor, through the inner updates.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        rate: θ.
        log_momentum: Logarithm of η; None for no momentum, η = 0.
        log_keep: Logarithm of 1 − α; None for no forgetting.
        state: Of every layer, [N, H, in, out]: the weights before the chunk that the sequence stands in, the weights
            M, the momentum Z; and the places [N] in the chunk.
        chunk: b, a part of the function, counted from a sequence's start.
        cu_seqlens: Limits 0, …, T of sequences packed into one row (B = 1).

    Returns:
        The outputs in q's dtype, and the state after them.
    """
    with own_precision(q):
        dtype, out = compute_dtype(q.dtype), q.dtype
        q, k, v, rate = (x.to(dtype) for x in (q, k, v, rate))
        *parts, place = state
        if q.shape[1] == 0:
            return v.to(out), state
        chunks = MiniBatches(q, place, read_bounds(cu_seqlens, *q.shape[:2]), chunk)
        Q, K, target, theta = (chunks.split(x) for x in (q, k, v, rate))
        real = chunks.split(torch.ones_like(rate))
        D, D_0 = _products(None if log_keep is None else chunks.split(log_keep), real)
        if log_momentum is None:
            E, E_0 = torch.diag_embed(real), torch.zeros_like(real)
        else:
            E, E_0 = _products(chunks.split(log_momentum), real)
        D = D * real.unsqueeze(-2)  # a row without a token adds no momentum to the weights
        u = -theta.unsqueeze(-2)
        inputs = (Q, K, target, (D @ E) * u, D_0.unsqueeze(-1), D @ E_0.unsqueeze(-1), E[:, -1:] * u, E_0[:, -1:, None])
        step = _Step(len(parts) // 3)
        o, parts = chunks.walk(step, tuple(x.to(dtype) for x in parts), inputs)  # type: ignore[assignment]
        return chunks.join(o).to(out), (*parts, chunks.place)


def _products(log: Tensor | None, real: Tensor) -> tuple[Tensor, Tensor]:
    """Π_{j<n≤i} for i ≥ j, else 0: [n, C, C]; and the product from the chunk's start: [n, C]."""
    if log is None:
        ones = torch.ones_like(real)
        return (ones.unsqueeze(-1) * ones.unsqueeze(-2)).tril(), ones
    products, g = decay_matrix(log.to(real.dtype))
    return products, g.exp().to(real.dtype)


class _Step:
    """One chunk: the gradients at the weights before it, the read of every token, M and Z after it."""

    def __init__(self, layers: int):
        self.layers = layers

    def __call__(self, state: Parts, inputs: Parts, turn: Turn) -> tuple[Tensor, Parts]:
        n = self.layers
        before, M, Z = state[:n], state[n : 2 * n], state[2 * n :]
        q, k, v, mix, keep, carry, momentum, momentum_kept = inputs
        X, answers = remember(k, before, biases=False)
        G = backward(2 * (answers[-1] - v), before, answers, biases=False)
        o = read(q, M, Z, X, G, Mix(mix, keep, carry), biases=False)
        M_next, Z_next = [], []
        for M_l, Z_l, X_l, G_l in zip(M, Z, X, G, strict=True):
            M_kept = torch.addcmul(keep[:, -1:] * M_l, carry[:, -1:], Z_l)
            M_next.append(torch.baddbmm(M_kept, X_l.mT * mix[:, -1:], G_l))
            Z_next.append(torch.baddbmm(momentum_kept * Z_l, X_l.mT * momentum, G_l))
        if turn.full is None:
            return o, (*M_next, *M_next, *Z_next)
        full = turn.full > 0
        before = tuple(torch.where(full, M_l, B_l) for M_l, B_l in zip(M_next, before, strict=True))
        return o, (*before, *M_next, *Z_next)
