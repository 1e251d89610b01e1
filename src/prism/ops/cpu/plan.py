"""How the recurrences are divided for the kernels: sequences, kept states, scratch memory, work."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from prism.ops.common.packing import Bounds
from prism.ops.cpu.shared import KEEP, C


def rows(x: Tensor) -> Any:
    """[B, T, …] as an array [B·T, …]."""
    return x.detach().contiguous().flatten(0, 1).numpy()


def array(x: Tensor) -> Any:
    """The same numbers as a contiguous array."""
    return x.detach().contiguous().numpy()


def scratch(shapes: Any, dtype: Any, *parts: int) -> Any:
    """Zeros of these shapes, each on a cache line: a vector load across two lines costs double."""
    line = 64 // dtype.itemsize
    sizes = [int(np.prod(parts + shape)) for shape in shapes]
    starts = np.cumsum([0] + [-(-size // line) * line for size in sizes])
    memory = np.zeros(starts[-1] + line, dtype)
    memory = memory[-(memory.ctypes.data // dtype.itemsize) % line :]
    arrays = zip(starts, sizes, shapes, strict=False)
    return type(shapes)(*(memory[a : a + size].reshape(parts + shape) for a, size, shape in arrays))


class Plan:
    """Where sequences begin and end, where their kept states lie, and how much work each (sequence, head) pair is."""

    def __init__(self, k: Tensor, V: int, kinds: int, scale: float, bounds: Bounds | None):
        B, T, self.H, self.K = *k.shape[:3], k.shape[-1]
        self.V, self.kinds = V, kinds
        self.bounds = np.arange(B + 1) * T if bounds is None else np.array(bounds)
        self.dtype = np.dtype(np.float64 if k.dtype == torch.float64 else np.float32)
        self.scale = self.dtype.type(scale)
        self.padded = (kinds, max(C, -(-self.K // C) * C), max(C, -(-V // C) * C))
        lengths = np.diff(self.bounds)
        kept = np.maximum(-(-lengths // KEEP) - 1, 0)  # the state before the first token is the caller's
        self.kept, self.kept_at = int(kept.sum()), np.cumsum(kept) - kept
        self.work = np.repeat((1 + lengths) * (4 * self.K * V * (1 + kinds)), self.H)
