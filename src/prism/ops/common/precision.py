"""Operators keep the precision of their operands: autocast, which is for the maps around them, stops at their door."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def own_precision(x: Tensor) -> AbstractContextManager[object]:
    """Outside of autocast on the device of x: an operator accumulates in float32 or better."""
    device = x.device.type if isinstance(x, Tensor) else "cpu"
    return torch.autocast(device, enabled=False) if autocasts(device) else nullcontext()


def autocasts(device: str) -> bool:
    """Whether autocast is on for a type of device (some, `meta` for one, do not know it)."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
