"""Tokens to chunks and back: every sequence cut into chunks of C tokens, its last one padded with zeros.

A padded token has k = 0, β = 0, ε = 0 and log α = 0: it neither decays, erases nor writes. Chunks are ordered by
their place in the sequence first, so that one step of the loop over chunks is one slice, and longest sequence
first, so that the sequences still running at step j are always the first `running[j]`.
"""

from collections.abc import Iterator
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from prism.ops.common.packing import Bounds, lengths_of

# Chunks × heads computed together: enough to fill the products, few enough for the temporaries to stay in cache.
GROUP = {"cpu": 32}
GROUP_ELSEWHERE = 4096


def layout_of(B: int, T: int, bounds: Bounds | None, C: int, device: torch.device) -> "Layout":
    """The layout; for packed sequences its tables go to the device once for all layers of a model."""
    if bounds is None or torch.compiler.is_compiling():
        return Layout(B, T, bounds, C, device)
    return _kept(B, T, bounds, C, device, torch._guards.detect_fake_mode())


@lru_cache(maxsize=8)
def _kept(B: int, T: int, bounds: Bounds, C: int, device: torch.device, mode: object) -> "Layout":
    return Layout(B, T, bounds, C, device)


class Layout:
    """Where the chunks of dense [B, T, …] or packed [1, T, …] tokens lie; C is at most the longest sequence."""

    def __init__(self, B: int, T: int, bounds: Bounds | None, C: int, device: torch.device):
        lengths = lengths_of(B, T, bounds)
        longest = T if bounds is None else max(lengths, default=0)
        self.B, self.T, self.C = B, T, min(C, max(longest, 1))
        self.running = [sum(n > first for n in lengths) for first in range(0, longest, self.C)]
        self.order: Tensor | None = None  # sequences, longest first; None: as they come
        if bounds is None:
            return
        order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
        self.order = torch.tensor(order, dtype=torch.long).to(device)
        self.inverse = torch.argsort(self.order)
        self._source, self._target = self._rows(bounds, order, device)

    def _rows(self, bounds: Bounds, order: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """For each chunk row its token (T: the row of zeros), and for each token its chunk row."""
        C, start = self.C, torch.tensor(bounds[:-1], dtype=torch.long)
        length = torch.tensor(bounds[1:], dtype=torch.long) - start
        sequence = torch.cat([torch.tensor(order[:n], dtype=torch.long) for n in self.running] or [start[:0]])
        step = torch.repeat_interleave(torch.arange(len(self.running)), torch.tensor(self.running, dtype=torch.long))
        offset = step[:, None] * C + torch.arange(C)
        real = offset < length[sequence][:, None]
        source = torch.where(real, start[sequence][:, None] + offset, self.T).flatten()
        target = torch.empty(self.T + 1, dtype=torch.long)
        target[source] = torch.arange(source.numel())
        return source.to(device), target[: self.T].to(device)

    def groups(self, q: Tensor) -> list[tuple[int, int, list[int]]]:
        """First and last chunk of each group of loop steps, and the sequences running at each of its steps."""
        most = max(1, GROUP.get(q.device.type, GROUP_ELSEWHERE) // max(1, q.shape[2]))
        found, end = [], 0
        for first, last in self._ranges(most):
            running = self.running[first:last]
            start, end = end, end + sum(running)
            found.append((start, end, running))
        return found

    def _ranges(self, most: int) -> Iterator[tuple[int, int]]:
        """Ranges of loop steps that hold at most `most` chunks (always at least one step)."""
        first, held = 0, 0
        for j, n in enumerate(self.running):
            if held and held + n > most:
                yield first, j
                first, held = j, 0
            held += n
        if held:
            yield first, len(self.running)

    def split(self, x: Tensor) -> Tensor:
        """[B, T, H, …] tokens as [chunks, C, H, …]."""
        rest = x.shape[2:]
        if self.order is not None:
            padded = F.pad(x[0], [0, 0] * len(rest) + [0, 1])
            return padded.index_select(0, self._source).view(-1, self.C, *rest)
        J = len(self.running)
        if J * self.C != self.T:
            x = F.pad(x, [0, 0] * len(rest) + [0, J * self.C - self.T])
        return x.reshape(self.B, J, self.C, *rest).transpose(0, 1).reshape(J * self.B, self.C, *rest)

    def join(self, y: Tensor) -> Tensor:
        """The inverse of `split`: [chunks, C, H, …] as [B, T, H, …], padding dropped."""
        rest = y.shape[2:]
        if self.order is not None:
            return y.reshape(-1, *rest).index_select(0, self._target).unsqueeze(0)
        J = len(self.running)
        y = y.reshape(J, self.B, self.C, *rest).transpose(0, 1).reshape(self.B, J * self.C, *rest)
        return y[:, : self.T].contiguous()

    def final(self, S: Tensor, S0: Tensor) -> Tensor:
        """States after the last tokens, in the caller's order, and never the caller's own."""
        S = S if self.order is None else S[self.inverse]
        return S.clone() if S is S0 else S


def heads_first(x: Tensor) -> Tensor:
    """[n, C, H, …] to [n·H, C, …]."""
    return x.transpose(1, 2).flatten(0, 1)


def tokens_first(x: Tensor, H: int) -> Tensor:
    """[n·H, C, …] back to [n, C, H, …]."""
    return x.unflatten(0, (-1, H)).transpose(1, 2)
