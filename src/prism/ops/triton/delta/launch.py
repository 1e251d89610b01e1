"""Tensors to kernels: sizes of tiles, places of chunks, one launch after the other."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from prism.ops.triton.delta import backward, forward
from prism.ops.triton.device import product_precision


class Tiles(NamedTuple):
    """Tokens of a chunk, padded widths of keys and of a block of values, and warps of one program."""

    C: int
    BK: int
    BV: int
    warps: int


# Tokens of a chunk: with 64 the working set of a chunk outgrows the registers.
CHUNK = 32


def tiles(kernel: str, K: int, V: int, dtype: torch.dtype) -> Tiles:
    """What each kernel needs the fewest registers with, among those compiled (docs/gpu.md has the table)."""
    BK = max(16, triton.next_power_of_2(K))
    narrow = BK > 128 or dtype == torch.float32 or kernel == "walk_back"
    BV = min(max(16, triton.next_power_of_2(V)), 32 if narrow else 64)
    wide = kernel in ("forward_walk", "gradients") and BK >= 128
    return Tiles(C=CHUNK, BK=BK, BV=BV, warps=8 if wide else 4)


class Chunks(NamedTuple):
    """Where chunks lie: for packed sequences found on the device, so that the host need not wait for it."""

    limits: Tensor | None  # [N + 1]
    first: Tensor | None  # [N]: the first chunk of each sequence
    sequence: Tensor | None  # [total]: the sequence of each chunk; N: none
    total: int  # at most
    N: int


def chunks(B: int, T: int, limits: Tensor | None, C: int) -> Chunks:
    """Chunks of C tokens of B sequences of T tokens, or of those packed between the limits."""
    if limits is None:
        return Chunks(None, None, None, B * triton.cdiv(T, C), B)
    N = limits.numel() - 1
    ends = torch.div(limits.diff() + (C - 1), C, rounding_mode="floor").cumsum(0)
    count = T // C + N
    sequence = torch.searchsorted(ends, torch.arange(count, device=limits.device), right=True)
    return Chunks(limits, ends.roll(1).index_fill(0, limits.new_zeros(1), 0) if N else ends, sequence, count, N)


class Shape(NamedTuple):
    """Sizes of a call."""

    B: int
    T: int
    H: int
    L: int
    K: int
    V: int
    N: int
    dtype: torch.dtype

    def blocks(self, kernel: str) -> int:
        """Blocks of values that a kernel divides its work into."""
        return int(triton.cdiv(self.V, tiles(kernel, self.K, self.V, self.dtype).BV))

    def constants(self, kernel: str, precision: str, packed: bool) -> dict[str, Any]:
        """What a kernel is compiled for."""
        C, BK, BV, warps = tiles(kernel, self.K, self.V, self.dtype)
        sizes = {"H": self.H, "L": self.L, "K": self.K, "V": self.V, "BK": BK, "BV": BV, "C": C}
        return sizes | {"PACKED": packed, "PRECISION": precision, "num_warps": warps, "num_stages": 1}


def shape_of(q: Tensor, v: Tensor, S0: Tensor) -> Shape:
    """The sizes of the operands."""
    B, T, H, K = q.shape
    return Shape(B, T, H, v.shape[3], K, v.shape[4], S0.shape[0], q.dtype)


def run_forward(tokens: list[Tensor], S0: Tensor, limits: Tensor | None, scale: float, keep: bool) -> list[Tensor]:
    """o, the final states and, if asked for, the state before each chunk (in the dtype of the products)."""
    q, v = tokens[0], tokens[2]
    x = shape_of(q, v, S0)
    place = chunks(x.B, x.T, limits, CHUNK)
    o = q.new_empty(x.B, x.T, x.H, x.V)
    kept = q.new_empty(place.total if keep else 0, x.H, x.V, x.K)
    if not x.B * x.T * S0.numel():
        return [o.zero_(), S0.clone(), kept]
    S = torch.empty_like(S0)
    grid = (x.blocks("forward_walk"), x.N, x.H)
    constants = x.constants("forward_walk", product_precision(q), limits is not None)
    forward.forward_walk[grid](
        *tokens, S0, place.limits, place.first, o, S, kept, scale, x.T, KEEP=keep, **constants
    )  # fmt: skip
    return [o, S, kept]


def run_backward(
    tokens: list[Tensor], kept: Tensor, limits: Tensor | None, scale: float, do: Tensor, dS: Tensor
) -> list[Tensor]:
    """The gradients of q, k, v, beta, log_alpha, erase and the initial states."""
    q, k, v, beta, log_alpha, erase = tokens
    x = shape_of(q, v, dS)
    grads = [torch.empty_like(y) for y in tokens]
    if not x.B * x.T * dS.numel():
        return [*(y.zero_() for y in grads), dS.clone()]
    place = chunks(x.B, x.T, limits, CHUNK)
    where = (place.limits, place.first)
    names = ("prepare", "walk_back", "gradients")
    constants = {name: x.constants(name, product_precision(q), limits is not None) for name in names}
    inverses = q.new_empty(place.total, x.H, CHUNK, CHUNK)
    U, dR, dkept, dS0 = torch.empty_like(do), torch.empty_like(do), torch.empty_like(kept), torch.empty_like(dS)
    given = (k, v, beta, log_alpha, erase, *where, place.sequence, kept)
    backward.prepare[(x.blocks("prepare"), place.total, x.H)](*given, inverses, U, x.T, x.N, **constants["prepare"])
    backward.walk_back[(x.blocks("walk_back"), x.N, x.H)](
        q, k, log_alpha, erase, do, dS, *where, inverses, dR, dkept, dS0, scale, x.T, **constants["walk_back"]
    )  # fmt: skip
    backward.gradients[(place.total, x.H)](
        *tokens, *where, place.sequence, kept, U, do, dR, dkept, *grads, scale, x.T, x.N, **constants["gradients"]
    )  # fmt: skip
    return [*grads, dS0]
