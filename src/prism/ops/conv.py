"""Causal depthwise convolution: u_t = Σ_{j<W} w_{W-1-j} x_{t-j}, with the last W−1 inputs as its state."""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.device import on_gpu
from prism.ops.common.packing import Limits, on_device, read_bounds
from prism.ops.common.precision import autocasts
from prism.ops.fused import kernels_for


class Norm(NamedTuple):
    """A LayerNorm over the channels."""

    weight: Float[Tensor, " D"]
    bias: Float[Tensor, " D"]
    eps: float

    def __call__(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens D"]:
        """Of each token."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def short_conv(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    *,
    bias: Float[Tensor, " D"] | None = None,
    silu: bool = False,
    norm: Norm | None = None,
    history: Float[Tensor, "N W-1 D"] | None = None,
    cu_seqlens: Limits | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N W-1 D"]]:
    """The whole sequence at once; `weight[:, -1]` meets the current token. Returns the outputs and the next history.

    With `silu`, SiLU of the outputs: in one compiled pass where there is one for the device. With `norm`, that
    LayerNorm of them: on a GPU in the same pass.
    """
    bounds = read_bounds(cu_seqlens, x.shape[0], x.shape[1])
    N, past = x.shape[0] if bounds is None else len(bounds) - 1, weight.shape[1] - 1
    if history is None:
        history = x.new_zeros(N, past, x.shape[2])
    weights = (weight,) if norm is None else (weight, norm.weight, norm.bias)
    compiled = kernels_for(x, history, weights=weights) if silu and bias is None and x.numel() else None
    recent = _recent(x, history, bounds)
    if compiled is not None and norm is not None and on_gpu(x):
        dtype = torch.float32 if autocasts(x.device.type) else x.dtype  # as PyTorch's norm gives it
        return compiled.conv_silu(x, weight, history=history, bounds=bounds, norm=norm, dtype=dtype), recent
    if compiled is not None:
        y = compiled.conv_silu(x, weight, history=history, bounds=bounds)
        return y if norm is None else norm(y), recent
    y = _convolve(torch.cat([history, x], 1), weight) if bounds is None else _packed(x, weight, history, bounds)
    y = y if bias is None else y + bias
    y = F.silu(y) if silu else y
    return y if norm is None else norm(y), recent


def _recent(x: Tensor, history: Tensor, bounds: tuple[int, ...] | None) -> Tensor:
    """The last W−1 inputs of each sequence."""
    past = history.shape[1]
    if bounds is None:
        seen = torch.cat([history, x[:, max(0, x.shape[1] - past) :]], 1)
        return seen[:, seen.shape[1] - past :].contiguous()
    limits = on_device(bounds, x.device)[:, None]
    starts, ends = limits[:-1], limits[1:]
    token = ends + torch.arange(-past, 0, device=x.device)
    old = token - starts + past  # where it lies in the history, if it comes before the first token
    new = x[0, token.clamp_min(0)] if x.shape[1] else history
    kept = history.gather(1, old.clamp(0, max(past - 1, 0))[..., None].expand(-1, -1, x.shape[2]))
    return torch.where((token >= starts)[..., None], new, kept)


def _packed(x: Tensor, weight: Tensor, history: Tensor, bounds: tuple[int, ...]) -> Tensor:
    """Each sequence gets its own history put before it; outputs at those places are dropped again."""
    pieces, kept = [], []
    for n, (a, b) in enumerate(pairwise(bounds)):
        pieces += [history[n], x[0, a:b]]
        kept.append(torch.arange(a, b, device=x.device) + n * history.shape[1])
    return _convolve(torch.cat(pieces)[None], weight)[:, torch.cat(kept)] if pieces else x


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
