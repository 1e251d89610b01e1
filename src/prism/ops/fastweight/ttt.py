"""Test-time training: W ← W − η ∂/∂W ½‖LN(f(k; W)) − (v − k)‖², o = q + LN(f(q; W)), in mini-batches of b tokens.

Inside a mini-batch all gradients G_j are taken at its first weights W, and token i reads with

    W_i = W − a_i Σ_{j≤i} r_j X_jᵀ G_j        a_i = max(0, 1/i + δ_i),  r_j the token's own rate

The rate η_ij = a_i r_j is a product, so that an unfinished mini-batch is remembered by W, D = Σ_j r_j X_jᵀ G_j and its
length alone. b = 1 is the fully serial method.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.checks import compute_dtype
from prism.ops.common.packing import Limits, read_bounds
from prism.ops.common.precision import own_precision
from prism.ops.fastweight.memory import Mix, backward, read, remember, with_one
from prism.ops.fastweight.walk import MiniBatches, Parts, Turn

EPS = 1e-6


def ttt(
    q: Float[Tensor, "B T H d"],
    k: Float[Tensor, "B T H d"],
    v: Float[Tensor, "B T H d"],
    rate: Float[Tensor, "B T H"],
    token_rate: Float[Tensor, " b"],
    norm: tuple[Float[Tensor, "H d"], Float[Tensor, "H d"]],
    state: tuple[Tensor, ...],
    *,
    cu_seqlens: Limits | None = None,
) -> tuple[Float[Tensor, "B T H d"], tuple[Tensor, ...]]:
    """Whole sequences; differentiable in every tensor, through the inner updates.

    Args:
        q: Queries.
        k: Keys.
        v: Values; what is learnt is v − k.
        rate: r, the part of the inner learning rate that a token brings as the source of a gradient.
        token_rate: a, the part that its place in the mini-batch gives to a reader; b is its length.
        norm: Weight and bias of the LN inside the loss and the read.
        state: W of every layer [N, H, in+1, out] (the last row its bias), D of every layer alike, and the places
            [N] at which the sequences stand in their mini-batch.
        cu_seqlens: Limits 0, …, T of sequences packed into one row (B = 1).

    Returns:
        The outputs in q's dtype, and the state after them.
    """
    with own_precision(q):
        dtype, out = compute_dtype(q.dtype), q.dtype
        q, k, v, rate, token_rate = (x.to(dtype) for x in (q, k, v, rate, token_rate))
        weight, bias = (x.to(dtype) for x in norm)
        *parts, place = state
        if q.shape[1] == 0:
            return q.to(out), state
        batches = MiniBatches(q, place, read_bounds(cu_seqlens, *q.shape[:2]), token_rate.shape[0])
        a = token_rate[: batches.C, None]
        # ∂loss/∂LN's normalised input is γ² x̂ − γ (target − bias): its constant parts, once
        target = batches.split(weight * (v - k - bias))
        Q, K, r = batches.split(with_one(q, True)), batches.split(with_one(k, True)), batches.split(rate)
        mix = -(a * r.unsqueeze(-2)).tril()
        step = _Step(weight.square().repeat(len(place), 1).unsqueeze(1), a, token_rate[-1], len(parts) // 2)
        Z, parts = batches.walk(step, tuple(x.to(dtype) for x in parts), (Q, K, target, r.unsqueeze(-1), mix))  # type: ignore[assignment]
        o = q + F.layer_norm(batches.join(Z), (q.shape[-1],), eps=EPS) * weight + bias
        return o.to(out), (*parts, batches.place)


def norm_gradient(
    Z: Float[Tensor, "n C d"], square: Float[Tensor, "n 1 d"], target: Float[Tensor, "n C d"]
) -> Float[Tensor, "n C d"]:
    """∂/∂Z ½‖γ x̂(Z) + bias − y‖² with γ² and γ (y − bias) given: the gradient through the LN."""
    width = [Z.shape[-1]]
    x, mean, rstd = torch.native_layer_norm(Z, width, None, None, EPS)
    dx = torch.addcmul(-target, square, x)
    G, _, _ = torch.ops.aten.native_layer_norm_backward(dx, Z, width, mean, rstd, None, None, [True, False, False])
    gradient: Tensor = G
    return gradient


class _Step:
    """One mini-batch: the gradients at its first weights, the read of every token, the weights after it."""

    def __init__(self, square: Tensor, a: Tensor, last: Tensor, layers: int):
        self.square, self.a, self.last, self.layers = square, a, last, layers

    def __call__(self, state: Parts, inputs: Parts, turn: Turn) -> tuple[Tensor, Parts]:
        W, D = state[: self.layers], state[self.layers :]
        q, k, target, r, mix = inputs
        X, Z = remember(k, W, biases=True)
        G = backward(norm_gradient(Z[-1], self.square[: k.shape[0]], target), W, Z, biases=True)
        # D is zero but for a mini-batch begun in an earlier call
        how = Mix(mix, carry=-self.a.expand(k.shape[0], -1, -1) if turn.resumed else None)
        z = read(q, W, D, X, G, how, biases=True)
        new = tuple((r * X_l).mT @ G_l for X_l, G_l in zip(X, G, strict=True))
        if turn.resumed:
            new = tuple(D_l + new_l for D_l, new_l in zip(D, new, strict=True))
            D = tuple(torch.zeros_like(D_l) for D_l in D)
        step = self.last if turn.full is None else self.last * turn.full
        if turn.full is not None:
            D = tuple((1 - turn.full) * new_l for new_l in new)
        return z, (*(W_l - step * new_l for W_l, new_l in zip(W, new, strict=True)), *D)
