"""Sequences of different lengths: packed into one row [1, T, …], or padded to one length [N, S, …].

What lies in a padded tensor beyond a sequence's length is never read.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from prism.ops.common.packing import Bounds, lengths_of


def positions(
    B: int, T: int, bounds: Bounds | None, before: Int[Tensor, " N"] | None, device: torch.device
) -> Int[Tensor, "B T"]:
    """The place of each token in its sequence, of which `before` tokens came earlier (None: none)."""
    if bounds is None:
        place = torch.arange(T, device=device).expand(B, T)
        return place if before is None else place + before[:, None]
    lengths = torch.tensor(lengths_of(B, T, bounds), dtype=torch.long, device=device)
    shift = -torch.tensor(bounds[:-1], dtype=torch.long, device=device)
    if before is not None:
        shift = shift + before
    return (torch.arange(T, device=device) + torch.repeat_interleave(shift, lengths))[None]


def rows_of(bounds: Bounds, which: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """For some packed sequences, the token in each place of their padded form [n, S], and whether it is one."""
    starts = torch.tensor([bounds[n] for n in which], dtype=torch.long, device=device)[:, None]
    ends = torch.tensor([bounds[n + 1] for n in which], dtype=torch.long, device=device)[:, None]
    longest = max((bounds[n + 1] - bounds[n] for n in which), default=0)
    index = starts + torch.arange(longest, device=device)
    return index.minimum((ends - 1).clamp(min=0)), index < ends


def pad(x: Tensor, bounds: Bounds | None) -> Tensor:
    """[1, T, …] packed as [N, S, …] padded; dense tokens as they are."""
    if bounds is None:
        return x
    index, _ = rows_of(bounds, range(len(bounds) - 1), x.device)
    if not index.numel():
        return x.new_zeros(*index.shape, *x.shape[2:])
    return x[0][index]


def unpad(y: Tensor, bounds: Bounds | None) -> Tensor:
    """The inverse of `pad`."""
    if bounds is None:
        return y
    _, real = rows_of(bounds, range(len(bounds) - 1), y.device)
    return y[real][None]


def append(past: Tensor, lengths: list[int], new: Tensor, counts: list[int]) -> Tensor:
    """Padded sequences [N, S, …] of given lengths, each followed by its first `counts` tokens of [N, R, …]."""
    S, both = past.shape[1], torch.cat([past, new], 1)
    if all(length == S for length in lengths):
        return both
    longest = max(a + b for a, b in zip(lengths, counts, strict=True))
    place = torch.arange(longest, device=past.device)
    ends = torch.tensor(lengths, device=past.device)[:, None]
    index = torch.where(place < ends, place, S + place - ends).clamp(max=both.shape[1] - 1)
    return both[torch.arange(len(both), device=past.device)[:, None], index]


def similar(bounds: Bounds) -> list[list[int]]:
    """Non-empty packed sequences in groups that differ in length by less than a quarter: little is lost by padding."""
    groups: dict[int, list[int]] = {}
    for n, length in enumerate(lengths_of(1, 0, bounds)):
        if length:
            grain = 1 << max(length.bit_length() - 3, 0)
            groups.setdefault(-(-length // grain) * grain, []).append(n)
    return list(groups.values())
