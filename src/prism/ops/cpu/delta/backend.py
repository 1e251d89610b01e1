"""The recurrence compiled for the CPU: chunks of 16 tokens in cache, parallel over sequences and heads."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from prism.ops.cpu import threads as cpu_threads
from prism.ops.cpu.delta.backward import Grads, backward_range, scratch_shapes
from prism.ops.cpu.delta.chunk import KEEP, PARTS, C, Tokens, chunk_shapes
from prism.ops.cpu.delta.forward import forward_range
from prism.ops.cpu.delta.step import step_range
from prism.ops.delta.operands import Operands, operands


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The outputs and the final states; differentiable in every tensor."""
    *tensors, scale, bounds = x
    if x.q.device.type != "cpu":
        raise ValueError(f"backend 'cpu' needs tensors on the CPU, got q on {x.q.device}")
    trained = torch.is_grad_enabled() and any(y.requires_grad for y in tensors)
    o, S = _Compiled.apply(*tensors, scale, bounds, trained)  # type: ignore[no-untyped-call]
    return o, S


def step(x: Operands) -> tuple[Tensor, Tensor]:
    """`forward` for operands of one token, without gradients: o [N, H, V] and the next state."""
    N, H, V, K = x.S0.shape
    o, S = x.q.new_empty(N, H, V), x.S0.new_empty(x.S0.shape)
    # [N, 1, H, …] and [N, H, …] alike as [N·H, …]; numpy's reshape costs a tenth of PyTorch's
    given = [y.detach().numpy().reshape(N * H, *y.shape[2 + (y is not x.S0) :]) for y in x[:7]]
    args = (*given, given[0].dtype.type(x.scale), o.numpy().reshape(N * H, V), S.numpy().reshape(N * H, V, K))
    work = np.full(N * H, K * V * (2 + x.k.shape[3]))
    cpu_threads.run(lambda begin, end: step_range(*args, begin, end), work)
    return o, S


def compile(dtype: torch.dtype) -> None:
    """Compiles the forward, or loads it from disk; raises what the compiler raises."""
    q = torch.zeros(1, 0, 1, 1, dtype=dtype)
    with torch.no_grad():
        forward(operands(q, q, q, q[..., 0]))


def _rows(x: Tensor) -> Any:
    """[B, T, …] as an array [B·T, …]."""
    return x.detach().contiguous().flatten(0, 1).numpy()


def _scratch(shapes: Any, dtype: Any, *parts: int) -> Any:
    """Zeros of these shapes, each on a cache line: a vector load across two lines costs double."""
    line = 64 // dtype.itemsize
    sizes = [int(np.prod(parts + shape)) for shape in shapes]
    starts = np.cumsum([0] + [-(-size // line) * line for size in sizes])
    memory = np.zeros(starts[-1] + line, dtype)
    memory = memory[-(memory.ctypes.data // dtype.itemsize) % line :]
    arrays = zip(starts, sizes, shapes, strict=False)
    return type(shapes)(*(memory[a : a + size].reshape(parts + shape) for a, size, shape in arrays))


class _Plan:
    """Where sequences begin and end, where their kept states lie, and how much work each pair is."""

    def __init__(self, q: Tensor, v: Tensor, scale: float, bounds: tuple[int, ...] | None):
        B, T, self.H, self.K = q.shape
        self.L, self.V = v.shape[3:]
        self.bounds = np.arange(B + 1) * T if bounds is None else np.array(bounds)
        self.dtype = np.dtype(np.float64 if q.dtype == torch.float64 else np.float32)
        self.scale = self.dtype.type(scale)
        self.padded = (self.L, max(C, -(-self.K // C) * C), max(C, -(-self.V // C) * C))
        lengths = np.diff(self.bounds)
        kept = np.maximum(-(-lengths // KEEP) - 1, 0)  # the state before the first token is the caller's
        self.kept, self.kept_at = int(kept.sum()), np.cumsum(kept) - kept
        self.work = np.repeat((1 + lengths) * (4 * self.K * self.V * (1 + self.L)), self.H)


class _Compiled(torch.autograd.Function):
    """Saves the inputs and one state per 64 tokens; the backward computes the rest anew."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        *tokens, S0, scale, bounds, trained = args
        q, v = tokens[0], tokens[2]
        plan = _Plan(q, v, scale, bounds)
        o, S = q.new_empty(*q.shape[:3], plan.V), S0.new_empty(S0.shape)
        kept = q.new_empty(plan.kept if trained else 0, plan.H, plan.K, plan.V)
        given = (Tokens(*map(_rows, tokens)), plan.bounds, S0.detach().contiguous().numpy(), plan.scale)
        results = (_rows(o), S.numpy(), kept.numpy(), plan.kept_at)

        def task(begin: int, end: int) -> None:
            x = _scratch(chunk_shapes(*plan.padded), plan.dtype, 1)
            forward_range(x, *given, *results, begin, end)

        cpu_threads.run(task, plan.work)
        ctx.save_for_backward(*tokens, S0, kept)
        ctx.plan = plan
        return o, S

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dS: Tensor) -> tuple[Any, ...]:
        *tokens, S0, kept = ctx.saved_tensors
        plan: _Plan = ctx.plan
        grads = [x.new_empty(x.shape) for x in (*tokens, S0)]
        *token_grads, dS0 = grads
        states = [y.contiguous().numpy() for y in (S0, kept, dS, dS0)]
        given, to = Tokens(*map(_rows, tokens)), Grads(*map(_rows, token_grads))
        do = _rows(do)

        def task(begin: int, end: int) -> None:
            x = _scratch(chunk_shapes(*plan.padded), plan.dtype, PARTS)
            y = _scratch(scratch_shapes(*plan.padded), plan.dtype)
            rest = (states[0], plan.scale, states[1], plan.kept_at, do, states[2], to, states[3])
            backward_range(x, y, given, plan.bounds, *rest, begin, end)

        cpu_threads.run(task, plan.work)
        return *grads, None, None, None
