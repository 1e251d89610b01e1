"""Backend `triton` of the recurrence: differentiable in every tensor, saves the operands and one state per span."""

from typing import Any

import torch
from torch import Tensor

from prism.ops.common.autograd import once
from prism.ops.common.packing import on_device
from prism.ops.delta.operands import Operands
from prism.ops.triton.delta.launch import run_backward, run_forward
from prism.ops.triton.delta.step import step
from prism.ops.triton.device import check_device

__all__ = ["forward", "step"]


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The outputs and the final states."""
    check_device(x.q)
    *tensors, scale, bounds = x
    limits = None if bounds is None else on_device(bounds, x.q.device)
    trained = torch.is_grad_enabled() and any(y.requires_grad for y in tensors)
    o, S = _Kernels.apply(*tensors, scale, limits, trained)  # type: ignore[no-untyped-call]
    return o, S


class _Kernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        *tokens, S0, scale, limits, trained = args
        tokens = [y.contiguous() for y in tokens]
        o, S, kept = run_forward(tokens, S0.contiguous(), limits, scale, trained)
        ctx.scale = scale
        ctx.save_for_backward(*tokens, kept, limits)
        return o, S

    @staticmethod
    @once
    def backward(ctx: Any, do: Tensor, dS: Tensor) -> tuple[Any, ...]:
        *tokens, kept, limits = ctx.saved_tensors
        grads = run_backward(list(tokens), kept, limits, ctx.scale, do.contiguous(), dS.contiguous())
        return *grads, None, None, None
