"""Functions with a backward by hand: exact inside autocast, differentiable once, and saying so."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from prism.ops.common.precision import own_precision

ONCE = "the gradient of this operator cannot be differentiated again: use backend='reference' for second derivatives"
Backward = Callable[..., tuple[Any, ...]]


def transformed() -> bool:
    """Whether a transform of torch.func is under way, which functions with a backward by hand cannot follow."""
    return torch._C._are_functorch_transforms_active()


def once(backward: Backward) -> Backward:
    """A backward that runs outside of autocast and without a graph; differentiating its result raises `ONCE`."""

    @wraps(backward)
    def outside(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        with torch.no_grad(), own_precision(grads[0]):
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # what is saved may be unpacked once only, under checkpointing
            return found
        sources = [x for x in (*ctx.saved_tensors, *grads) if x is not None and x.requires_grad]
        if not sources:
            return found
        which = [i for i, x in enumerate(found) if isinstance(x, Tensor)]
        refusing = iter(_Refuse.apply(len(which), *(found[i] for i in which), *sources))
        return tuple(next(refusing) if i in which else x for i, x in enumerate(found))

    return outside


class _Refuse(torch.autograd.Function):
    """The first `count` tensors, which depend on all of them in a way that is not known."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.clone() for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        raise NotImplementedError(ONCE)


def outside_autocast(function: Callable[[Any], tuple[Tensor, Tensor]], x: Any) -> tuple[Tensor, Tensor]:
    """function(x), x a named tuple of operands, with a backward that autocast does not reach: it computes anew."""
    names = [name for name, y in x._asdict().items() if isinstance(y, Tensor)]

    def again(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return function(x._replace(**dict(zip(names, tensors, strict=True))))

    return _Anew.apply(again, *(getattr(x, name) for name in names))  # type: ignore[no-any-return, no-untyped-call]


class _Anew(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    @once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            outputs = ctx.function(*leaves)
        return None, *torch.autograd.grad(outputs, leaves, grads, allow_unused=True)
