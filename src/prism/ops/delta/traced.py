"""The recurrence as one node of a traced graph (`torch.compile`, `torch.export`), with its gradient.

A trace sees shapes, not kernels: what runs inside is the backend that `auto` picks for the device. The backward
computes the forward anew, so that a graph keeps nothing but the operands.
"""

from typing import Any

import torch
from torch import Tensor

from prism.ops.common.backends import pick
from prism.ops.common.traced import gradients
from prism.ops.delta.definition import MODULES, reference
from prism.ops.delta.operands import Operands


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The outputs and the final states, as an opaque operation."""
    *tensors, scale, bounds = x
    return _delta_rule(*tensors, scale, None if bounds is None else list(bounds))


def _run(tensors: list[Tensor], scale: float, bounds: list[int] | None) -> tuple[Tensor, Tensor]:
    q, k, v, beta, log_alpha, erase, S0 = tensors
    x = Operands(q, k, v, beta, log_alpha, erase, S0, scale, None if bounds is None else tuple(bounds))
    return pick("auto", x, reference, MODULES, autocast=False)(x)


@torch.library.custom_op("prism::delta_rule", mutates_args=())
def _delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_alpha: Tensor,
    erase: Tensor,
    S0: Tensor,
    scale: float,
    bounds: list[int] | None,
) -> tuple[Tensor, Tensor]:
    o, S = _run([q, k, v, beta, log_alpha, erase, S0], scale, bounds)
    return o.contiguous(), S.clone()


@_delta_rule.register_fake
def _shapes(q: Tensor, k: Tensor, v: Tensor, beta: Any, log_alpha: Any, erase: Any, S0: Tensor, *rest: Any) -> Any:
    return q.new_empty(*q.shape[:3], v.shape[-1]), torch.empty_like(S0, memory_format=torch.contiguous_format)


@torch.library.custom_op("prism::delta_rule_backward", mutates_args=())
def _backward(do: Tensor, dS: Tensor, tensors: list[Tensor], scale: float, bounds: list[int] | None) -> list[Tensor]:
    return gradients(lambda leaves: _run(leaves, scale, bounds), tensors, (do, dS))


@_backward.register_fake
def _backward_shapes(do: Tensor, dS: Tensor, tensors: list[Tensor], *rest: Any) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.scale, ctx.bounds = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, do: Tensor, dS: Tensor) -> tuple[Any, ...]:
    return *_backward(do, dS, list(ctx.saved_tensors), ctx.scale, ctx.bounds), None, None


_delta_rule.register_autograd(_gradients, setup_context=_save)
