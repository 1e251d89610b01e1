"""Rotary positions: channels i and i + d/2 turned by the angle p · base^{−2i/d}, so that ⟨q_p, k_r⟩ sees only p − r."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from prism.ops.common.device import exact_dtype


def rotate(
    x: Float[Tensor, "B T H d"], position: Int[Tensor, "B T"], base: float = 10000.0
) -> Float[Tensor, "B T H d"]:
    """x turned according to the place of each token; d must be even."""
    half = x.shape[-1] // 2
    rate = base ** -(torch.arange(half, device=x.device, dtype=exact_dtype(x.device)) / half)
    # float64: at position 10⁶ a float32 angle is off by 0.06
    angle = position[..., None, None] * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
