"""`gated_rule` compiled for the CPU: chunks of 16 tokens in cache, parallel over sequences and heads."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from prism.ops.cpu import threads as cpu_threads
from prism.ops.cpu.delta.backend import _rows, _scratch
from prism.ops.cpu.gated.chunk import KEEP, PARTS, C, Tokens, chunk_shapes
from prism.ops.cpu.gated.kernels import Grads, backward_range, forward_range, scratch_shapes
from prism.ops.gated.operands import Gated


def forward(x: Gated) -> tuple[Tensor, Tensor]:
    """The outputs and the final states; differentiable in every tensor."""
    if x.q.device.type != "cpu":
        raise ValueError(f"backend 'cpu' needs tensors on the CPU, got q on {x.q.device}")
    tokens = x.tokens()
    trained = torch.is_grad_enabled() and any(y.requires_grad for y in (x.S0, *tokens))
    o, S = _Compiled.apply(x.S0, x.scale, x.side == "value", x.bounds, trained, *tokens)
    return o, S


def compile(dtype: torch.dtype) -> None:
    """Compiles the forward, or loads it from disk; raises what the compiler raises."""
    token, S0 = torch.zeros(1, 0, 1, 1, dtype=dtype), torch.zeros(1, 1, 1, 1, dtype=dtype)
    with torch.no_grad():
        forward(Gated(token, token, token, token, None, None, S0, 1.0, "key", None))


class _Plan:
    """Where sequences begin and end, where their kept states lie, and how much work each pair is."""

    def __init__(self, tokens: list[Tensor], scale: float, bounds: tuple[int, ...] | None):
        B, T, self.H, self.K = tokens[1].shape
        self.V, self.G = tokens[2].shape[-1], len(tokens) // 2 - 1
        self.bounds = np.arange(B + 1) * T if bounds is None else np.array(bounds)
        self.dtype = np.dtype(np.float64 if tokens[1].dtype == torch.float64 else np.float32)
        self.scale = self.dtype.type(scale)
        self.padded = (self.G, max(C, -(-self.K // C) * C), max(C, -(-self.V // C) * C))
        lengths = np.diff(self.bounds)
        kept = np.maximum(-(-lengths // KEEP) - 1, 0)  # the state before the first token is the caller's
        self.kept, self.kept_at = int(kept.sum()), np.cumsum(kept) - kept
        self.work = np.repeat((1 + lengths) * (4 * self.K * self.V * (1 + self.G)), self.H)

    def scratch(self, parts: int) -> tuple[Any, Any]:
        """Memory for one thread: so many chunks, and what a chunk needs besides."""
        chunks = tuple(_scratch(chunk_shapes(*self.padded), self.dtype) for _ in range(parts))
        return chunks, _scratch(scratch_shapes(*self.padded), self.dtype)


def _tokens(a: Tensor, tokens: list[Tensor]) -> Tokens:
    _, k, v, log_alpha, *erasure = tokens
    find, erase = erasure or (k[:, :0], k[:, :0])
    return Tokens(*map(_rows, (a, k, v, log_alpha, log_alpha.detach().exp(), find, erase)))


class _Compiled(torch.autograd.Function):
    """Saves the inputs and one state per 64 tokens; the backward computes the rest anew."""

    @staticmethod
    def forward(ctx: Any, S0: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        scale, by_value, bounds, trained, *tokens = args
        q, k, v = tokens[:3]
        plan = _Plan(tokens, scale, bounds)
        o, S = q.new_empty(*q.shape[:3], (k if by_value else v).shape[-1]), S0.new_empty(S0.shape)
        kept = q.new_empty(plan.kept if trained else 0, plan.H, plan.K, plan.V)
        # from the value side nothing is read with a: k stands in its place
        given = (_tokens(k if by_value else q, tokens), _rows(q), by_value, plan.bounds, _array(S0), plan.scale)
        results = (_rows(o), S.numpy(), kept.numpy(), plan.kept_at)
        cpu_threads.run(lambda begin, end: forward_range(*plan.scratch(1), *given, *results, begin, end), plan.work)
        ctx.save_for_backward(*tokens, S0, kept)
        ctx.plan, ctx.by_value = plan, by_value
        return o, S

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dS: Tensor) -> tuple[Any, ...]:
        *tokens, S0, kept = ctx.saved_tensors
        plan: _Plan = ctx.plan
        grads = [x.new_empty(x.shape) for x in tokens]
        dS0, none = S0.new_empty(S0.shape), tokens[1][:, :0]
        to = Grads(*map(_rows, grads if plan.G == 2 else (*grads, none, none)))
        a, b = (do, tokens[0]) if ctx.by_value else (tokens[0], do)
        given = (_tokens(a, tokens), _rows(b), ctx.by_value, plan.bounds, _array(S0), plan.scale)
        states = (kept.numpy(), plan.kept_at, _array(dS), to, dS0.numpy())
        cpu_threads.run(lambda begin, end: backward_range(*plan.scratch(PARTS), *given, *states, begin, end), plan.work)
        return dS0, None, None, None, None, *grads


def _array(x: Tensor) -> Any:
    return x.detach().contiguous().numpy()
