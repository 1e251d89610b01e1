"""`gated_rule` compiled for the CPU: chunks of 16 tokens in cache, parallel over sequences and heads."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from prism.ops.common.autograd import once
from prism.ops.common.backends import is_trained
from prism.ops.cpu import threads as cpu_threads
from prism.ops.cpu.gated.chunk import Tokens, chunk_shapes
from prism.ops.cpu.gated.kernels import Grads, backward_range, forward_range, scratch_shapes
from prism.ops.cpu.plan import Plan, array, rows, scratch
from prism.ops.cpu.shared import PARTS
from prism.ops.gated.operands import Gated


def forward(x: Gated) -> tuple[Tensor, Tensor]:
    """The outputs and the final states; differentiable in every tensor."""
    if x.q.device.type != "cpu":
        raise ValueError(f"backend 'cpu' needs tensors on the CPU, got q on {x.q.device}")
    tokens = x.tokens()
    o, S = _Compiled.apply(x.S0, x.scale, x.side == "value", x.bounds, is_trained(x), *tokens)
    return o, S


def compile(dtype: torch.dtype, *, backward: bool = False) -> None:
    """Compiles the forward (and the backward), or loads it from disk; raises what the compiler raises."""
    token = torch.zeros(1, 0, 1, 1, dtype=dtype, requires_grad=backward)
    S0 = torch.zeros(1, 1, 1, 1, dtype=dtype)
    with torch.set_grad_enabled(backward):
        o, _ = forward(Gated(token, token, token, token, None, None, S0, 1.0, "key", None))
        if backward:
            o.sum().backward()


def _memory(plan: Plan, parts: int) -> tuple[Any, Any]:
    """Memory for one thread: so many chunks, and what a chunk needs besides."""
    chunks = tuple(scratch(chunk_shapes(*plan.padded), plan.dtype) for _ in range(parts))
    return chunks, scratch(scratch_shapes(*plan.padded), plan.dtype)


def _tokens(a: Tensor, tokens: list[Tensor]) -> Tokens:
    _, k, v, log_alpha, *erasure = tokens
    find, erase = erasure or (k[:, :0], k[:, :0])
    return Tokens(*map(rows, (a, k, v, log_alpha, log_alpha.detach().exp(), find, erase)))


class _Compiled(torch.autograd.Function):
    """Saves the inputs and one state per 64 tokens; the backward computes the rest anew."""

    @staticmethod
    def forward(ctx: Any, S0: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        scale, by_value, bounds, trained, *tokens = args
        q, k, v = tokens[:3]
        plan = Plan(k, v.shape[-1], len(tokens) // 2 - 1, scale, bounds)
        o, S = q.new_empty(*q.shape[:3], (k if by_value else v).shape[-1]), S0.new_empty(S0.shape)
        kept = q.new_empty(plan.kept if trained else 0, plan.H, plan.K, plan.V)
        # from the value side nothing is read with a: k stands in its place
        given = (_tokens(k if by_value else q, tokens), rows(q), by_value, plan.bounds, array(S0), plan.scale)
        results = (rows(o), S.numpy(), kept.numpy(), plan.kept_at)
        cpu_threads.run(forward_range, plan.work, given + results, partial(_memory, plan, 1))
        ctx.save_for_backward(*tokens, S0, kept)
        ctx.plan, ctx.by_value = plan, by_value
        return o, S

    @staticmethod
    @once
    def backward(ctx: Any, do: Tensor, dS: Tensor) -> tuple[Any, ...]:
        *tokens, S0, kept = ctx.saved_tensors
        plan: Plan = ctx.plan
        grads = [x.new_empty(x.shape) for x in tokens]
        dS0, none = S0.new_empty(S0.shape), tokens[1][:, :0]
        to = Grads(*map(rows, grads if plan.kinds == 2 else (*grads, none, none)))
        a, b = (do, tokens[0]) if ctx.by_value else (tokens[0], do)
        given = (_tokens(a, tokens), rows(b), ctx.by_value, plan.bounds, array(S0), plan.scale)
        states = (kept.numpy(), plan.kept_at, array(dS), to, dS0.numpy())
        cpu_threads.run(backward_range, plan.work, given + states, partial(_memory, plan, PARTS))
        return dS0, None, None, None, None, *grads
