"""Causal depthwise convolution: u_t = Σ_{j<W} w_{W-1-j} x_{t-j}, with the last W−1 inputs as its state."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from prism.ops.operands import read_bounds


def short_conv(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    *,
    history: Float[Tensor, "N W-1 D"] | None = None,
    cu_seqlens: Int[Tensor, " limits"] | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N W-1 D"]]:
    """The whole sequence at once; `weight[:, -1]` meets the current token. Returns the outputs and the next history."""
    B, T, D = x.shape
    past = weight.shape[1] - 1
    bounds = read_bounds(cu_seqlens, B, T)
    if bounds is None:
        if history is None:
            history = x.new_zeros(B, past, D)
        seen = torch.cat([history, x], 1)
        return _convolve(seen, weight), seen[:, seen.shape[1] - past :].contiguous()
    if history is None:
        history = x.new_zeros(len(bounds) - 1, past, D)
    # each sequence gets its own history put before it; outputs at those places are dropped again
    pieces, kept = [], []
    for n, (a, b) in enumerate(pairwise(bounds)):
        pieces += [history[n], x[0, a:b]]
        kept.append(torch.arange(a, b, device=x.device) + n * past)
    if not pieces:
        return x, history
    seen = torch.cat(pieces)
    ends = torch.tensor([b + (n + 1) * past for n, b in enumerate(bounds[1:])], device=x.device)
    last = ends[:, None] + torch.arange(-past, 0, device=x.device)
    return _convolve(seen[None], weight)[:, torch.cat(kept)], seen[last]


def _convolve(seen: Float[Tensor, "B S D"], weight: Float[Tensor, "D W"]) -> Float[Tensor, "B S-W+1 D"]:
    D, W = weight.shape
    if seen.shape[1] < W:
        return seen[:, :0]
    return F.conv1d(seen.mT, weight.unsqueeze(1), groups=D).mT


def short_conv_step(
    x: Float[Tensor, "N D"],
    weight: Float[Tensor, "D W"],
    *,
    history: Float[Tensor, "N W-1 D"] | None = None,
) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N W-1 D"]]:
    """One token: the definition of `short_conv`."""
    if history is None:
        history = x.new_zeros(x.shape[0], weight.shape[1] - 1, x.shape[1])
    seen = torch.cat([history, x.unsqueeze(1)], 1)
    return torch.einsum("nwd,dw->nd", seen, weight), seen[:, 1:]
