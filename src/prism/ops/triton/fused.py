"""The parts around the recurrence on a GPU: what `prism.ops.cpu.fused` is on the CPU, under the same names."""

from typing import Any

import torch
import triton
from torch import Tensor

from prism.ops.common.autograd import once
from prism.ops.common.packing import Bounds, on_device
from prism.ops.triton.around import conv, rows
from prism.ops.triton.device import check_device

# Numbers of a tile: what a program holds at once in registers, several times over.
TILE = 2048
CONV_TOKENS, CONV_CHANNELS = 16, 64


def refine(r: Tensor, p: Tensor) -> Tensor:
    """δ^l = GELU(p^l ⊙ r^l), r^{l+1} = r^l − δ^l: residual r [*, V] and gains p [*, L, V] to the δ's [*, L, V]."""
    check_device(r)
    return _Refine.apply(r, p)  # type: ignore[no-any-return, no-untyped-call]


def normalize(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / max(‖x‖, eps) along the last axis."""
    check_device(x)
    return _Normalize.apply(x, eps)  # type: ignore[no-any-return, no-untyped-call]


def gated_norm(o: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    """RMSNorm(o) ⊙ SiLU(gate) along the last axis, both of one shape."""
    check_device(o)
    return _GatedNorm.apply(o, weight, gate, eps)  # type: ignore[no-any-return, no-untyped-call]


def conv_silu(x: Tensor, weight: Tensor, *, history: Tensor, bounds: Bounds | None = None) -> Tensor:
    """SiLU(Σ_j w_{W−1−j} x_{t−j}) for x [B, T, D], weight [D, W] and history [N, W−1, D]."""
    check_device(x)
    B, T, _ = x.shape
    if bounds is None:
        limits = torch.arange(B + 1, device=x.device) * T
        owner = torch.arange(B * T, device=x.device) // max(T, 1)
    else:
        limits = on_device(bounds, x.device)
        owner = torch.searchsorted(limits[1:], torch.arange(T, device=x.device), right=True)
    return _Conv.apply(x, weight, history, owner, limits)  # type: ignore[no-any-return, no-untyped-call]


def _sizes(x: Tensor) -> tuple[int, int, dict[str, int]]:
    """Rows of the last axis, programs, and the constants of a kernel over rows."""
    V = x.shape[-1]
    M, BV = x.numel() // max(V, 1), triton.next_power_of_2(max(V, 1))
    BM = max(1, TILE // BV)
    return M, triton.cdiv(M, BM), {"V": V, "BM": BM, "BV": BV}


class _Refine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, r: Tensor, p: Tensor) -> Tensor:
        r, p = r.contiguous(), p.contiguous()
        ctx.save_for_backward(r, p)
        delta = torch.empty_like(p)
        if p.numel():
            M, programs, sizes = _sizes(r)
            rows.refine_forward[(programs,)](r, p, delta, M, L=p.shape[-2], **sizes)
        return delta

    @staticmethod
    @once
    def backward(ctx: Any, ddelta: Tensor) -> tuple[Tensor, Tensor]:
        r, p = ctx.saved_tensors
        dr, dp = torch.empty_like(r), torch.empty_like(p)
        if not p.numel():
            return dr.zero_(), dp
        M, programs, sizes = _sizes(r)
        rows.refine_backward[(programs,)](r, p, ddelta.contiguous(), dr, dp, M, L=p.shape[-2], **sizes)
        return dr, dp


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.eps = eps
        y = torch.empty_like(x)
        if x.numel():
            M, programs, sizes = _sizes(x)
            rows.unit_forward[(programs,)](x, y, eps, M, **sizes)
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        if x.numel():
            M, programs, sizes = _sizes(x)
            rows.unit_backward[(programs,)](x, dy.contiguous(), dx, ctx.eps, M, **sizes)
        return dx, None


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, o: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
        o, weight, gate = o.contiguous(), weight.contiguous(), gate.contiguous()
        ctx.save_for_backward(o, weight, gate)
        ctx.eps = eps
        y = torch.empty_like(o)
        if o.numel():
            M, programs, sizes = _sizes(o)
            rows.gated_norm_forward[(programs,)](o, weight, gate, y, eps, M, **sizes)
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        o, weight, gate = ctx.saved_tensors
        do, dgate = torch.empty_like(o), torch.empty_like(gate)
        if not o.numel():
            return do, torch.zeros_like(weight), dgate, None
        M, programs, sizes = _sizes(o)
        shares = torch.empty(programs, weight.numel(), dtype=torch.float32, device=o.device)
        rows.gated_norm_backward[(programs,)](
            o, weight, gate, dy.contiguous(), do, dgate, shares, ctx.eps, M, **sizes
        )  # fmt: skip
        return do, shares.sum(0).to(weight.dtype), dgate, None


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, history: Tensor, owner: Tensor, limits: Tensor) -> Tensor:
        x, w, history = x.contiguous(), w.contiguous(), history.contiguous()
        ctx.save_for_backward(x, w, history, owner, limits)
        u, (D, W) = torch.empty_like(x), w.shape
        T = owner.numel()
        grid = (triton.cdiv(T, CONV_TOKENS), triton.cdiv(D, CONV_CHANNELS))
        sizes = {"D": D, "W": W, "BT": CONV_TOKENS, "BD": CONV_CHANNELS}
        conv.conv_forward[grid](x, w, history, owner, limits, u, T, **sizes)
        return u

    @staticmethod
    @once
    def backward(ctx: Any, du: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, w, history, owner, limits = ctx.saved_tensors
        (D, W), T, du = w.shape, owner.numel(), du.contiguous()
        dx, dhistory = torch.empty_like(x), torch.empty_like(history)
        blocks, parts = triton.cdiv(T, CONV_TOKENS), triton.cdiv(D, CONV_CHANNELS)
        shares = torch.empty(blocks, W, D, dtype=torch.float32, device=x.device)
        sizes = {"D": D, "W": W, "BT": CONV_TOKENS, "BD": CONV_CHANNELS}
        conv.conv_backward[(blocks, parts)](x, w, history, owner, limits, du, dx, shares, T, **sizes)
        if history.numel():
            more = {"D": D, "W": W, "BW": triton.next_power_of_2(W - 1), "BD": CONV_CHANNELS}
            conv.conv_history_backward[(history.shape[0], parts)](x, w, history, limits, du, dhistory, **more)
        return dx, shares.sum(0).flip(0).mT.to(w.dtype), dhistory, None, None
