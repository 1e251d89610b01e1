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
        device = args[0].device.type if args and isinstance(args[0], Tensor) else "cpu"
        if not autocasts(device):
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return outside


def autocasts(device: str) -> bool:
    """Whether autocast is on for a type of device (some, `meta` for one, do not know it)."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
