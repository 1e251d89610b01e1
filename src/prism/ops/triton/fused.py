"""The parts around the recurrence on a GPU: what `prism.ops.cpu.fused` is on the CPU, under the same names."""

from typing import Any

import torch
import triton
from torch import Tensor

from prism.ops.common.autograd import once
from prism.ops.common.packing import Bounds, on_device
from prism.ops.conv import Norm
from prism.ops.triton.around import conv, rows
from prism.ops.triton.device import check_device

# Numbers of a tile: what a program holds at once in registers, several times over.
TILE = 2048
REFINE_TILE = 1024  # backwards: with twice as much Triton 3.7.1 spills 8 bytes on sm_100
CONV_TOKENS, CONV_CHANNELS = 16, 64
CONV_STEPS = 4  # blocks of tokens of one program's share in the gradient of the weights


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


def conv_silu(
    x: Tensor,
    weight: Tensor,
    *,
    history: Tensor,
    bounds: Bounds | None = None,
    norm: Norm | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """SiLU(Σ_j w_{W−1−j} x_{t−j}) for x [B, T, D], weight [D, W] and history [N, W−1, D]; with `norm`, its LayerNorm.

    In x's dtype, or in the one asked for.
    """
    check_device(x)
    B, T, _ = x.shape
    if bounds is None:
        limits = torch.arange(B + 1, device=x.device) * T
        owner = torch.arange(B * T, device=x.device) // max(T, 1)
    else:
        limits = on_device(bounds, x.device)
        owner = torch.searchsorted(limits[1:], torch.arange(T, device=x.device), right=True)
    gamma, beta, eps = (None, None, 0.0) if norm is None else norm
    return _Conv.apply(x, weight, gamma, beta, history, owner, limits, eps, dtype or x.dtype)  # type: ignore[no-any-return, no-untyped-call]


def _sizes(x: Tensor, tile: int = TILE) -> tuple[int, int, dict[str, int]]:
    """Rows of the last axis, programs, and the constants of a kernel over rows."""
    V = x.shape[-1]
    M, BV = x.numel() // max(V, 1), triton.next_power_of_2(max(V, 1))
    BM = max(1, tile // BV)
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
        M, programs, sizes = _sizes(r, REFINE_TILE)
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
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        history: Tensor,
        owner: Tensor,
        limits: Tensor,
        eps: float,
        dtype: torch.dtype,
    ) -> Tensor:
        x, w, history = x.contiguous(), w.contiguous(), history.contiguous()
        u, (D, W), T = torch.empty_like(x, dtype=dtype), w.shape, owner.numel()
        blocks = triton.cdiv(T, CONV_TOKENS)
        sizes = {"D": D, "W": W, "BT": CONV_TOKENS, "BD": CONV_CHANNELS}
        place = (history, owner, limits, u)
        moments = None
        if gamma is None:
            conv.conv_forward[(blocks, triton.cdiv(D, CONV_CHANNELS))](x, w, *place, T, **sizes)
        else:
            moments = torch.empty(2, T, dtype=torch.float32, device=x.device)
            conv.conv_norm_forward[(blocks,)](x, w, gamma, beta, *place, moments, eps, T, **sizes)
        ctx.save_for_backward(x, w, gamma, history, owner, limits, moments)
        return u

    @staticmethod
    @once
    def backward(ctx: Any, du: Tensor) -> tuple[Any, ...]:
        x, w, gamma, history, owner, limits, moments = ctx.saved_tensors
        (D, W), T, du = w.shape, owner.numel(), du.contiguous()
        dx, dhistory, norm = torch.empty_like(x), torch.empty_like(history), gamma is not None
        sizes = {"D": D, "W": W, "BT": CONV_TOKENS, "BD": CONV_CHANNELS}
        sums = torch.empty_like(moments) if norm else None
        if norm:
            conv.norm_sums[(triton.cdiv(T, CONV_TOKENS),)](
                x, w, gamma, history, owner, limits, moments, du, sums, T, **sizes
            )
        blocks, parts = triton.cdiv(T, CONV_TOKENS * CONV_STEPS), triton.cdiv(D, CONV_CHANNELS)
        shares = torch.empty(blocks, W + 2 * norm, D, dtype=torch.float32, device=x.device)
        more = {"BW": triton.next_power_of_2(W + 2 * norm), "STEPS": CONV_STEPS, "NORM": norm}
        conv.conv_backward[(blocks, parts)](
            x, w, gamma, history, owner, limits, moments, sums, du, dx, shares, T, **sizes, **more
        )
        if history.numel():
            few = {"D": D, "W": W, "BH": triton.next_power_of_2(W - 1), "BD": CONV_CHANNELS, "NORM": norm}
            conv.conv_history_backward[(history.shape[0], parts)](
                x, w, gamma, history, limits, moments, sums, du, dhistory, T, **few
            )
        dw, *affine = shares.sum(0).split([W, 1, 1] if norm else [W])
        dgamma, dbeta = (y[0].to(gamma.dtype) for y in affine) if norm else (None, None)
        return dx, dw.flip(0).mT.to(w.dtype), dgamma, dbeta, dhistory, None, None, None, None
