"""The recurrence with a decay per channel as one node of a traced graph, with its gradient (see `delta/traced`)."""

from typing import Any

import torch
from torch import Tensor

from prism.ops.common.backends import pick
from prism.ops.common.traced import gradients
from prism.ops.gated.definition import MODULES, reference
from prism.ops.gated.operands import Gated


def forward(x: Gated) -> tuple[Tensor, Tensor]:
    """The outputs and the final states, as an opaque operation."""
    bounds = None if x.bounds is None else list(x.bounds)
    return _gated_rule(*x[:7], x.scale, x.side, bounds)


def _run(tensors: list[Tensor], scale: float, side: str, bounds: list[int] | None) -> tuple[Tensor, Tensor]:
    q, k, v, log_alpha, *erasure, S0 = tensors
    find, erase = erasure if erasure else (None, None)
    limits = None if bounds is None else tuple(bounds)
    x = Gated(q, k, v, log_alpha, find, erase, S0, scale, side, limits)  # type: ignore[arg-type]
    return pick("auto", x, reference, MODULES, autocast=False)(x)


@torch.library.custom_op("prism::gated_rule", mutates_args=())
def _gated_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_alpha: Tensor,
    find: Tensor | None,
    erase: Tensor | None,
    S0: Tensor,
    scale: float,
    side: str,
    bounds: list[int] | None,
) -> tuple[Tensor, Tensor]:
    given = [x for x in (q, k, v, log_alpha, find, erase, S0) if x is not None]
    o, S = _run(given, scale, side, bounds)
    return o.contiguous(), S.clone()


@_gated_rule.register_fake
def _shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_alpha: Any,
    find: Any,
    erase: Any,
    S0: Tensor,
    scale: Any,
    side: str,
    bounds: Any,
) -> tuple[Tensor, Tensor]:
    width = (v if side == "key" else k).shape[-1]
    return q.new_empty(*q.shape[:3], width), torch.empty_like(S0, memory_format=torch.contiguous_format)


@torch.library.custom_op("prism::gated_rule_backward", mutates_args=())
def _backward(
    do: Tensor, dS: Tensor, tensors: list[Tensor], scale: float, side: str, bounds: list[int] | None
) -> list[Tensor]:
    return gradients(lambda leaves: _run(leaves, scale, side, bounds), tensors, (do, dS))


@_backward.register_fake
def _backward_shapes(do: Tensor, dS: Tensor, tensors: list[Tensor], *rest: Any) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.scale, ctx.side, ctx.bounds = inputs
    ctx.given = [x is not None for x in tensors]
    ctx.save_for_backward(*(x for x in tensors if x is not None))


def _gradients(ctx: Any, do: Tensor, dS: Tensor) -> tuple[Any, ...]:
    found = iter(_backward(do, dS, list(ctx.saved_tensors), ctx.scale, ctx.side, ctx.bounds))
    return *(next(found) if given else None for given in ctx.given), None, None, None


_gated_rule.register_autograd(_gradients, setup_context=_save)
