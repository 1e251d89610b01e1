"""Backend `triton` of the recurrence: differentiable in every tensor, saves the operands and one state per chunk."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from prism.ops.delta.operands import Operands
from prism.ops.triton.delta.launch import run_backward, run_forward
from prism.ops.triton.device import check_device


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The outputs and the final states."""
    check_device(x.q)
    if x.erase.ndim == 4:
        raise ValueError("backend 'triton' erases along the first direction only: use 'chunk' for erase [B, T, H, L]")
    *tensors, scale, bounds = x
    limits = None if bounds is None else torch.tensor(bounds, device=x.q.device)
    trained = torch.is_grad_enabled() and any(y.requires_grad for y in tensors)
    o, S = _Kernels.apply(*tensors, scale, limits, trained)  # type: ignore[no-untyped-call]
    return o, S


class _Kernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        *tokens, S0, scale, limits, trained = args
        tokens = [y.contiguous() for y in tokens]
        o, S, kept = run_forward(tokens, S0.contiguous(), limits, scale, trained)
        ctx.save_for_backward(*tokens, kept, limits)
        ctx.scale = scale
        return o, S

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dS: Tensor) -> tuple[Any, ...]:
        *tokens, kept, limits = ctx.saved_tensors
        grads = run_backward(list(tokens), kept, limits, ctx.scale, do.contiguous(), dS.contiguous())
        return *grads, None, None, None
