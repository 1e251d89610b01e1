"""Tensors to kernels: sizes of tiles, places of chunks, one launch after the other."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from prism.ops.triton.delta import backward, forward
from prism.ops.triton.device import is_amd, product_precision, solve_precision

# Rows of a chunk: with 32 the working set of a chunk outgrows the registers (docs/gpu.md).
CHUNK = 16


class Tiles(NamedTuple):
    """Rows of a chunk, channels of keys and of values that a program holds at once, and its warps."""

    C: int
    BK: int
    BV: int
    warps: int


def tiles(kernel: str, K: int, V: int, dtype: torch.dtype, R: int = 1) -> Tiles:
    """What each kernel keeps in registers with, among those compiled; one warp holds 16 values.

    With R > 1 rows for each token, of which each erases, a chunk has more to hold.
    """
    BK = max(32, triton.next_power_of_2(K))
    narrow = BK > 128 or dtype == torch.float32
    BV = min(max(16, triton.next_power_of_2(V)), 32 if narrow else 64)
    if kernel == "key_gradients":
        return Tiles(CHUNK, min(BK, 64), BV if BK > 64 and R == 1 else min(BV, 32), warps=min(BK, 64) // 16)
    # masked loads of keys, as of 96 channels, need more registers; AMD has twice as many
    crowded = kernel == "forward_walk" and 64 < K and (K < BK or R > 1) and dtype != torch.float32 and not is_amd()
    return Tiles(CHUNK, BK, BV, warps=BV // (8 if crowded else 16))


def span(K: int, V: int, R: int) -> int:
    """Chunks between states that are kept: few enough bytes beside the operands' (1.3 times those at most)."""
    return 16 if max(K, V) > 128 or R > 1 else 8


class Chunks(NamedTuple):
    """Where chunks lie: for packed sequences found on the device, so that the host need not wait for it."""

    first: Tensor | None  # [N]: the first chunk of each sequence
    owner: Tensor | None  # [total]: the sequence of each chunk; N: none
    total: int  # at most


def chunks(N: int, rows: int, limits: Tensor | None, C: int) -> Chunks:
    """Chunks of C rows of N sequences of so many rows, or of those packed between the limits."""
    if limits is None:
        return Chunks(None, None, N * triton.cdiv(rows, C))
    ends = torch.div(limits.diff() + (C - 1), C, rounding_mode="floor").cumsum(0)
    count = rows // C + N
    owner = torch.searchsorted(ends, torch.arange(count, device=limits.device), right=True)
    return Chunks(torch.cat([ends.new_zeros(1), ends[:-1]]) if N else ends, owner, count)


class Shape(NamedTuple):
    """Sizes of a call."""

    B: int
    T: int
    H: int
    L: int
    R: int  # rows of a token, each of which erases: 1, or L
    K: int
    V: int
    N: int
    dtype: torch.dtype
    packed: bool

    @property
    def rows(self) -> int:
        """Rows of a sequence, or of all packed ones."""
        return self.T * self.R

    @property
    def span(self) -> int:
        """Chunks between states that are kept."""
        return span(self.K, self.V, self.R)

    @property
    def parts(self) -> int:
        """Parts of the keys whose gradients are taken apart."""
        return int(triton.cdiv(self.K, tiles("key_gradients", self.K, self.V, self.dtype, self.R).BK))

    def grid(self, kernel: str, many: int) -> tuple[int, int]:
        """Programs for so many sequences, spans or chunks, as `places.own_work` tells them apart."""
        BV = tiles(kernel, self.K, self.V, self.dtype, self.R).BV
        return many * (self.parts if kernel == "key_gradients" else triton.cdiv(self.V, BV)), self.H

    def constants(self, kernel: str) -> dict[str, Any]:
        """What a kernel is compiled for."""
        C, BK, BV, warps = tiles(kernel, self.K, self.V, self.dtype, self.R)
        precision = product_precision()
        sizes: dict[str, Any] = {"H": self.H, "L": self.L, "R": self.R, "K": self.K, "V": self.V, "BV": BV, "C": C}
        sizes |= {"PACKED": self.packed, "PRECISION": precision, "num_warps": warps, "num_stages": 1}
        if kernel != "value_gradients":
            sizes["BK"] = BK
        if kernel in ("forward_walk", "restore"):
            sizes |= {"SPAN": self.span, "SOLVE": solve_precision(self.dtype)}
        return sizes


def shape_of(q: Tensor, v: Tensor, erase: Tensor, S0: Tensor, packed: bool) -> Shape:
    """The sizes of the operands."""
    B, T, H, K = q.shape
    L = v.shape[3]
    return Shape(B, T, H, L, L if erase.ndim == 4 else 1, K, v.shape[4], S0.shape[0], q.dtype, packed)


def run_forward(tokens: list[Tensor], S0: Tensor, limits: Tensor | None, scale: float, keep: bool) -> list[Tensor]:
    """o, the final states and, if asked for, the state before each span (in the dtype of the products)."""
    q, v = tokens[0], tokens[2]
    x = shape_of(q, v, tokens[5], S0, limits is not None)
    limits = None if limits is None else limits * x.R
    spans = chunks(x.N, x.rows, limits, CHUNK * x.span)
    o = q.new_empty(x.B, x.T, x.H, x.V)
    kept = q.new_empty(spans.total if keep else 0, x.H, x.V, x.K)
    if not x.B * x.T * S0.numel():
        return [o.zero_(), S0.clone(), kept]
    S = torch.empty_like(S0)
    forward.forward_walk[x.grid("forward_walk", x.N)](
        *tokens, S0, limits, spans.first, o, S, kept, scale, x.rows, KEEP=keep, **x.constants("forward_walk")
    )  # fmt: skip
    return [o, S, kept]


def run_backward(
    tokens: list[Tensor], kept: Tensor, limits: Tensor | None, scale: float, do: Tensor, dS: Tensor
) -> list[Tensor]:
    """The gradients of q, k, v, beta, log_alpha, erase and the initial states."""
    q, k, v, beta, log_alpha, erase = tokens
    x = shape_of(q, v, erase, dS, limits is not None)
    grads = [torch.empty_like(y) for y in tokens]
    if not x.B * x.T * dS.numel():
        return [*(y.zero_() for y in grads), dS.clone()]
    limits = None if limits is None else limits * x.R
    place, spans = chunks(x.N, x.rows, limits, CHUNK), chunks(x.N, x.rows, limits, CHUNK * x.span)
    states = q.new_empty(place.total, x.H, x.V, x.K)
    inverses, U = q.new_empty(place.total, x.H, CHUNK, CHUNK), q.new_empty(x.B, x.T, x.H, x.R, x.V)
    dR, dstates, dS0 = torch.empty_like(U), torch.empty_like(states), torch.empty_like(dS)
    forward.restore[x.grid("restore", spans.total)](
        k, v, beta, log_alpha, erase, limits, spans.first, spans.owner, place.first,
        kept, states, inverses, U, x.rows, x.N, **x.constants("restore"),
    )  # fmt: skip
    backward.walk_back[x.grid("walk_back", x.N)](
        q, k, log_alpha, erase, do, dS, limits, place.first, inverses, dR, dstates, dS0, scale, x.rows,
        **x.constants("walk_back"),
    )  # fmt: skip
    dq, dk, dv, dbeta, dlog_alpha, derase = grads
    given = (*tokens, limits, place.first, place.owner)
    backward.value_gradients[(place.total, x.H)](
        *given, do, dR, dstates, dv, dbeta, scale, x.rows, x.N, **x.constants("value_gradients")
    )  # fmt: skip
    shares = [torch.empty(x.parts, *y.shape, dtype=torch.float32, device=y.device) for y in (dlog_alpha, derase)]
    backward.key_gradients[x.grid("key_gradients", place.total)](
        *given, states, U, do, dR, dstates, dq, dk, *shares, scale, x.rows, x.N, x.B * x.T * x.H,
        **x.constants("key_gradients"),
    )  # fmt: skip
    return [dq, dk, dv, dbeta, shares[0].sum(0).to(log_alpha.dtype), shares[1].sum(0).to(erase.dtype), dS0]
