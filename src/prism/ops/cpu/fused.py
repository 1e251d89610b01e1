"""The parts around the recurrence, each fused into one compiled pass over memory, with its gradient; for the CPU.

In PyTorch each is a chain of operations, every one of which reads and writes all tokens. `usable` says whether
tensors can be given to these functions; where it says no, callers compose the same from PyTorch's operations.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from prism.ops.common.autograd import once, transformed
from prism.ops.common.backends import compiles


def usable(*tensors: Tensor | None) -> bool:
    """Whether these are all on the CPU, of one dtype that the kernels are compiled for, and the compiler works.

    Never inside a trace: there PyTorch's own compiler fuses the chain.
    """
    if torch.compiler.is_compiling():
        return False
    given = [x for x in tensors if x is not None]
    dtypes = {x.dtype for x in given}
    return (
        len(dtypes) == 1
        and not transformed()
        and dtypes <= {torch.float32, torch.float64}
        and all(x.device.type == "cpu" for x in given)
        and compiles("prism.ops.cpu.delta.backend", given[0].dtype)
    )


def refine(r: Tensor, p: Tensor) -> Tensor:
    """δ^l = GELU(p^l ⊙ r^l), r^{l+1} = r^l − δ^l: residual r [*, V] and gains p [*, L, V] to the δ's [*, L, V]."""
    return _Refine.apply(r, p)  # type: ignore[no-any-return, no-untyped-call]


def normalize(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / max(‖x‖, eps) along the last axis."""
    return _Normalize.apply(x, eps)  # type: ignore[no-any-return, no-untyped-call]


def dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """x / (1 − p) where a number drawn from the seed says so, else 0 (with probability p)."""
    return _Dropout.apply(x, p, seed)  # type: ignore[no-any-return, no-untyped-call]


def conv_silu(
    x: Tensor, weight: Tensor, *, history: Tensor | None = None, bounds: tuple[int, ...] | None = None
) -> Tensor:
    """SiLU(Σ_j w_{W−1−j} x_{t−j}) for x [B, T, D], weight [D, W] and history [N, W−1, D], as `short_conv` takes them.

    `bounds` are the limits of sequences packed into one row, as integers.
    """
    B, T, D = x.shape
    limits = np.arange(B + 1) * T if bounds is None else np.array(bounds)
    if history is None:
        history = x.new_zeros(len(limits) - 1, weight.shape[1] - 1, D)
    return _Conv.apply(x, weight.flip(1).mT.contiguous(), history, limits)  # type: ignore[no-any-return, no-untyped-call]


def _rows(x: Tensor, keep: int) -> Any:
    """An array with the last `keep` axes as they are and the others as one."""
    x = x.detach().contiguous()
    return x.view(-1 if x.numel() else 0, *x.shape[x.ndim - keep :]).numpy()


def _over_rows(kernel: Any, count: int, work: int, *args: Any) -> None:
    """A kernel over `count` independent rows, each about as much work as that many multiply-adds."""
    from prism.ops.cpu import threads as cpu_threads

    # a few rows are one item: the division of the work is not to cost more than the work
    block = max(1, 4096 // max(1, work))
    items = -(-count // block)
    cpu_threads.run(
        lambda begin, end: kernel(*args, begin * block, min(end * block, count)), np.full(items, work * block)
    )


class _Refine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, r: Tensor, p: Tensor) -> Tensor:
        from prism.ops.cpu import parts as cpu_parts

        delta = p.new_empty(p.shape)
        args = (_rows(r, 1), _rows(p, 2), _rows(delta, 2))
        if p.numel():
            _over_rows(cpu_parts.refine_forward, len(args[0]), 40 * args[1][0].size, *args)
        ctx.save_for_backward(r, p, delta)
        return delta

    @staticmethod
    @once
    def backward(ctx: Any, ddelta: Tensor) -> tuple[Tensor, Tensor]:
        from prism.ops.cpu import parts as cpu_parts

        r, p, delta = ctx.saved_tensors
        dr, dp = r.new_zeros(r.shape) if not p.numel() else r.new_empty(r.shape), p.new_empty(p.shape)
        args = (_rows(r, 1), _rows(p, 2), _rows(delta, 2), _rows(ddelta, 2), _rows(dr, 1), _rows(dp, 2))
        if p.numel():
            _over_rows(cpu_parts.refine_backward, len(args[0]), 50 * args[1][0].size, *args)
        return dr, dp


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        from prism.ops.cpu import parts as cpu_parts

        y, rows = x.new_empty(x.shape), _rows(x, 1)
        _over_rows(cpu_parts.normalize_forward, len(rows), 4 * x.shape[-1], rows, rows.dtype.type(eps), _rows(y, 1))
        ctx.save_for_backward(x)
        ctx.eps = eps
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        from prism.ops.cpu import parts as cpu_parts

        (x,) = ctx.saved_tensors
        dx, rows = x.new_empty(x.shape), _rows(x, 1)
        args = (rows, rows.dtype.type(ctx.eps), _rows(dy, 1), _rows(dx, 1))
        _over_rows(cpu_parts.normalize_backward, len(rows), 8 * x.shape[-1], *args)
        return dx, None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: int) -> Tensor:
        ctx.p, ctx.seed = p, seed
        return _left_out(x, p, seed)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return _left_out(dy, ctx.p, ctx.seed), None, None


def _left_out(x: Tensor, p: float, seed: int) -> Tensor:
    from prism.ops.cpu import parts as cpu_parts

    y, flat = x.new_empty(x.shape), x.detach().reshape(-1).numpy()
    scale = flat.dtype.type(1 / (1 - p) if p < 1 else 0)
    args = (flat, np.uint64(seed), np.uint64(round(p * 2**32)), scale, y.view(-1).numpy())
    _over_rows(cpu_parts.dropout, len(flat), 4, *args)
    return y


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, history: Tensor, bounds: Any) -> Tensor:
        from prism.ops.cpu import conv as cpu_conv

        u, tokens, (W, D) = x.new_empty(x.shape), x.shape[0] * x.shape[1], w.shape
        js = tuple(range(0, -W, -1))
        args = (_rows(x, 1), w.detach().numpy(), history.detach().contiguous().numpy(), bounds, js, _rows(u, 1))
        _over_rows(cpu_conv.conv_forward, D, tokens * (W + 15), *args)
        ctx.save_for_backward(x, w, history)
        ctx.bounds = bounds
        return u

    @staticmethod
    @once
    def backward(ctx: Any, du: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        from prism.ops.cpu import conv as cpu_conv

        x, w, history = ctx.saved_tensors
        tokens, (W, D) = x.shape[0] * x.shape[1], w.shape
        dx, dw, dhistory = x.new_empty(x.shape), w.new_empty(w.shape), history.new_empty(history.shape)
        given = (_rows(x, 1), w.numpy(), history.contiguous().numpy(), ctx.bounds)
        taps = (tuple(range(0, -W, -1)), tuple(range(W)))
        results = (_rows(dx, 1), dw.numpy(), dhistory.numpy())
        _over_rows(cpu_conv.conv_backward, D, tokens * (3 * W + 20), *given, *taps, _rows(du, 1), *results)
        return dx, dw, dhistory, None
