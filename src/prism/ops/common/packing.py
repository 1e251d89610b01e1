"""Sequences packed into one row [1, T, …]: where each begins and ends, read from the device once and handed down."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from prism.ops.common.checks import describe

Bounds = tuple[int, ...]


@dataclass(frozen=True)
class Packing:
    """The limits 0, …, T of packed sequences as integers; stands for `cu_seqlens` wherever that is taken."""

    bounds: Bounds

    @classmethod
    def of(cls, cu_seqlens: "Tensor | Packing | None", B: int, T: int) -> "Packing | None":
        """The one place that reads `cu_seqlens`, refused unless it covers 0..T in order; None: one row per sequence."""
        if cu_seqlens is None:
            return None
        packing = cu_seqlens if isinstance(cu_seqlens, Packing) else cls(_read(cu_seqlens))
        if B != 1:
            raise ValueError(f"cu_seqlens packs sequences into one row: it needs B = 1, got B = {B}")
        first, last = packing.bounds[0], packing.bounds[-1]
        if first != 0 or last != T:
            raise ValueError(f"cu_seqlens must run from 0 to T = {T}, got {first} to {last}")
        return packing

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @cached_property
    def lengths(self) -> list[int]:
        """The length of every sequence."""
        return [b - a for a, b in pairwise(self.bounds)]


Limits = Int[Tensor, " limits"] | Packing


def _read(cu_seqlens: object) -> Bounds:
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.ndim != 1 or cu_seqlens.numel() < 1:
        raise ValueError(f"cu_seqlens must be a tensor of shape [N+1], got {describe(cu_seqlens)}")
    if cu_seqlens.is_floating_point() or cu_seqlens.dtype == torch.bool:
        raise ValueError(f"cu_seqlens must hold integers, got {cu_seqlens.dtype}")
    bounds = tuple(cu_seqlens.tolist())
    for before, after in pairwise(bounds):
        if after < before:
            raise ValueError(f"cu_seqlens must not decrease, got {before} followed by {after}")
    return bounds


def read_bounds(cu_seqlens: Tensor | Packing | None, B: int, T: int) -> Bounds | None:
    """The limits of packed sequences; None: one row per sequence."""
    packing = Packing.of(cu_seqlens, B, T)
    return None if packing is None else packing.bounds


def lengths_of(B: int, T: int, bounds: Bounds | None) -> list[int]:
    """The length of every sequence."""
    return [T] * B if bounds is None else Packing(bounds).lengths


def each_sequence(run: Callable[[Any], tuple[Tensor, Tensor]], x: Any, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """An operator on each packed sequence by itself, a `part` of its operands: outputs in one row, and states."""
    found = [run(x.part(0, 0, slice(0)))]  # of no sequence, so that there is something to join
    found += [run(x.part(a, b, slice(n, n + 1))) for n, (a, b) in enumerate(pairwise(bounds))]
    o, S = zip(*found, strict=True)
    return torch.cat(o, 1), torch.cat(S)


def on_device(bounds: Bounds, device: torch.device) -> Int[Tensor, " limits"]:
    """Limits (or other places) as a tensor; copied to a device once for all layers of a model and for its backward."""
    if torch.compiler.is_compiling() or device.type == "cpu":
        return torch.tensor(bounds, dtype=torch.long, device=device)
    return _copied(bounds, device, torch._guards.detect_fake_mode())


@lru_cache(maxsize=16)
def _copied(bounds: Bounds, device: torch.device, mode: object) -> Tensor:
    return torch.tensor(bounds, dtype=torch.long).to(device)
