"""Operators keep the precision of their operands: autocast, which is for the maps around them, stops at their door."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def own_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Runs an operator, whose first argument is a tensor, outside of autocast: it accumulates in float32 or better."""

    @wraps(function)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0] if args else None
        if not isinstance(first, Tensor) or not torch.is_autocast_enabled(first.device.type):
            return function(*args, **kwargs)
        with torch.autocast(first.device.type, enabled=False):
            return function(*args, **kwargs)

    return outside
