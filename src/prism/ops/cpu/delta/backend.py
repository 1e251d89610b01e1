"""The recurrence compiled for the CPU: chunks of 16 tokens in cache, parallel over sequences and heads."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prism.ops.common.autograd import once
from prism.ops.common.backends import is_trained
from prism.ops.cpu import threads as cpu_threads
from prism.ops.cpu.delta.backward import Grads, backward_range, scratch_shapes
from prism.ops.cpu.delta.chunk import Tokens, chunk_shapes
from prism.ops.cpu.delta.forward import forward_range
from prism.ops.cpu.delta.step import step_range
from prism.ops.cpu.plan import Plan, array, rows, scratch
from prism.ops.cpu.shared import PARTS
from prism.ops.delta.operands import Operands, operands


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The outputs and the final states; differentiable in every tensor."""
    *tensors, scale, bounds = _each_direction(x)
    if x.q.device.type != "cpu":
        raise ValueError(f"backend 'cpu' needs tensors on the CPU, got q on {x.q.device}")
    o, S = _Compiled.apply(*tensors, scale, bounds, is_trained(x))  # type: ignore[no-untyped-call]
    return o, S


def step(x: Operands) -> tuple[Tensor, Tensor]:
    """`forward` for operands of one token, without gradients: o [N, H, V] and the next state."""
    x = _each_direction(x)
    N, H, V, K = x.S0.shape
    o, S = x.q.new_empty(N, H, V), x.S0.new_empty(x.S0.shape)
    # [N, 1, H, …] and [N, H, …] alike as [N·H, …]; numpy's reshape costs a tenth of PyTorch's
    given = [y.detach().numpy().reshape(N * H, *y.shape[2 + (y is not x.S0) :]) for y in x[:7]]
    args = (*given, given[0].dtype.type(x.scale), o.numpy().reshape(N * H, V), S.numpy().reshape(N * H, V, K))
    cpu_threads.run(step_range, np.full(N * H, K * V * (2 + x.k.shape[3])), args)
    return o, S


def _each_direction(x: Operands) -> Operands:
    """The erasure as [B, T, H, G]: of the first direction (G = 1) or of all of them (G = L)."""
    return x if x.erase.ndim == 4 else x._replace(erase=x.erase.unsqueeze(-1))


def compile(dtype: torch.dtype, *, backward: bool = False) -> None:
    """Compiles the forward (and the backward), or loads it from disk; raises what the compiler raises."""
    q = torch.zeros(1, 0, 1, 1, dtype=dtype, requires_grad=backward)
    with torch.set_grad_enabled(backward):
        o, _ = forward(operands(q, q, q, q[..., 0]))
        if backward:
            o.sum().backward()


def _memory(plan: Plan, erasures: int, parts: int) -> tuple[Any, ...]:
    """Memory for one thread: so many chunks and, for the backward, what a chunk needs besides."""
    each = (erasures,) if erasures > 1 else ()
    chunks = scratch(chunk_shapes(erasures, *plan.padded), plan.dtype, parts)._replace(each=each)
    return (chunks,) if parts == 1 else (chunks, scratch(scratch_shapes(erasures, *plan.padded), plan.dtype))


class _Compiled(torch.autograd.Function):
    """Saves the inputs and one state per 64 tokens; the backward computes the rest anew."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        *tokens, S0, scale, bounds, trained = args
        q, k, v, *_, erase = tokens
        plan = Plan(k, v.shape[-1], k.shape[3], scale, bounds)
        o, S = q.new_empty(*q.shape[:3], plan.V), S0.new_empty(S0.shape)
        kept = q.new_empty(plan.kept if trained else 0, plan.H, plan.K, plan.V)
        given = (Tokens(*map(rows, tokens)), plan.bounds, array(S0), plan.scale)
        results = (rows(o), S.numpy(), kept.numpy(), plan.kept_at)
        cpu_threads.run(forward_range, plan.work, given + results, partial(_memory, plan, erase.shape[3], 1))
        ctx.save_for_backward(*tokens, S0, kept)
        ctx.plan = plan
        return o, S

    @staticmethod
    @once
    def backward(ctx: Any, do: Tensor, dS: Tensor) -> tuple[Any, ...]:
        *tokens, S0, kept = ctx.saved_tensors
        plan: Plan = ctx.plan
        grads = [x.new_empty(x.shape) for x in (*tokens, S0)]
        *token_grads, dS0 = grads
        given = (Tokens(*map(rows, tokens)), plan.bounds, array(S0), plan.scale, array(kept), plan.kept_at)
        results = (rows(do), array(dS), Grads(*map(rows, token_grads)), dS0.numpy())
        cpu_threads.run(backward_range, plan.work, given + results, partial(_memory, plan, tokens[-1].shape[3], PARTS))
        return *grads, None, None, None
