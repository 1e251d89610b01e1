"""Operators keep the precision of their operands: autocast, which is for the maps around them, stops at their door."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def own_precision(x: Tensor) -> Iterator[bool]:
    """Outside of autocast on the device of x, where an operator accumulates in float32 or better; whether it was on."""
    device = x.device.type if isinstance(x, Tensor) else "cpu"
    if not autocasts(device):
        yield False
        return
    with torch.autocast(device, enabled=False):
        yield True


def autocasts(device: str) -> bool:
    """Whether autocast is on for a type of device (some, `meta` for one, do not know it)."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
