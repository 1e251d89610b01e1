"""The refinement loop: δ^l = φ(p^l ⊙ r^l), r^{l+1} = r^l − δ^l (Eqs. delta and residual_sub)."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from prism.ops.fused import kernels_for

Nonlinearity = Literal["gelu", "identity"]
Residual = Literal["subtract", "none", "state"]


def refine(
    r: Float[Tensor, "*tokens V"],
    p: Float[Tensor, "*tokens gains V"] | None,
    steps: int,
    *,
    nonlinearity: Nonlinearity = "gelu",
    residual: Residual = "subtract",
) -> Float[Tensor, "*tokens L V"]:
    """The L corrections that are written, from the first residual alone.

    Args:
        r: The first residual, v − u (or v itself: the ablation without a residual).
        p: The gains, one vector per step; None for a gain of 1.
        steps: L, corrections per token.
        nonlinearity: φ in δ = φ(p ⊙ r).
        residual: Whether each step goes on from what the one before left (`none`, `state`: all see the first residual).
    """
    if p is not None:
        if p.shape[-2] < steps:
            raise ValueError(f"p must have gains for steps = {steps}, got {p.shape[-2]}")
        p = p[..., :steps, :]
    if p is not None and nonlinearity == "gelu" and residual == "subtract":
        compiled = kernels_for(r, p)
        if compiled is not None:
            return compiled.refine(r, p)  # type: ignore[no-any-return]
    return refine_reference(r, p, steps, nonlinearity, residual)


def refine_reference(
    r: Tensor, p: Tensor | None, steps: int, nonlinearity: str = "gelu", residual: str = "subtract"
) -> Tensor:
    """The definition of `refine`, one step after the other."""
    deltas = []
    for l in range(steps):
        delta = r if p is None else p[..., l, :] * r
        if nonlinearity == "gelu":
            delta = F.gelu(delta)
        deltas.append(delta)
        if residual == "subtract":
            r = r - delta
    return torch.stack(deltas, -2)
