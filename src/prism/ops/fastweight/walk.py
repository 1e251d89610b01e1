"""The serial loop over mini-batches of tokens, S_{j+1} = f(S_j, x_j), for sequences of any lengths at once.

Mini-batches are counted from the start of a sequence, not of a call: a sequence that stopped `place` tokens into one
goes on there, in a first mini-batch whose rows before `place` are zeros. A row is thus always a token's place in its
mini-batch, and what one call leaves unfinished the next one finishes, exactly.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from prism.ops.common.layout import heads_first, layout_of, tokens_first
from prism.ops.common.packing import Bounds, lengths_of

# Bytes of states, one per turn, that the backward keeps at once (what is kept with each state is some ten times it);
# a longer walk is cut into segments, and the backward computes the turns of each anew.
KEPT = 2**25

Parts = tuple[Tensor, ...]


class Turn(NamedTuple):
    """What one step of the loop knows about its mini-batches."""

    resumed: bool  # it is the first step, and some sequence had stopped inside a mini-batch
    full: Tensor | None  # [n·H, 1, 1]: 1 where the mini-batch is finished, 0 where not; None: finished everywhere


Step = Callable[[Parts, Parts, Turn], tuple[Tensor, Parts]]


class MiniBatches:
    """Tokens [B, T, H, …] as mini-batches [n·H, C, …] and back, and the walk through them."""

    def __init__(self, q: Tensor, place: Tensor, bounds: Bounds | None, size: int):
        B, T, self.H = q.shape[:3]
        lengths = lengths_of(B, T, bounds)
        start = place.tolist()
        self.ends = [p + n for p, n in zip(start, lengths, strict=True)]
        self.resumed, self.size, self.shape = any(start), size, (B, T)
        if self.resumed:  # all sequences in one row, each after as many zeros as it has tokens in its mini-batch
            limits = [0, *torch.tensor(self.ends).cumsum(0).tolist()]
            rows = [torch.arange(b - n, b) for b, n in zip(limits[1:], lengths, strict=True)]
            self._rows = torch.cat(rows or [torch.arange(0)]).to(q.device)
            B, T, bounds = 1, limits[-1], tuple(limits)
        self.layout = layout_of(B, T, bounds, size, q.device)
        order = self.layout.order
        self._sorted = self.ends if order is None else [self.ends[n] for n in order.tolist()]
        self.place = torch.tensor(self.ends, device=q.device) % size

    @property
    def C(self) -> int:
        """Rows of a mini-batch: `size`, or fewer if no sequence is that long."""
        return self.layout.C

    def split(self, x: Tensor) -> Tensor:
        """[B, T, H, …] tokens as [n·H, C, …], zeros where there is no token."""
        if self.resumed:
            flat = x.flatten(0, 1)
            x = flat.new_zeros(self.layout.T, *flat.shape[1:]).index_copy(0, self._rows, flat)[None]
        return heads_first(self.layout.split(x))

    def join(self, y: Tensor) -> Tensor:
        """The inverse of `split`."""
        y = self.layout.join(tokens_first(y, self.H))
        return y[0, self._rows].unflatten(0, self.shape) if self.resumed else y

    def walk(self, step: Step, state: Parts, inputs: Parts) -> tuple[Tensor, Parts]:
        """Every mini-batch in turn: `step(state, inputs, turn) -> (output, state)`.

        Args:
            step: One turn, for the sequences still running.
            state: What the turns hand on, each [N, H, …].
            inputs: What each mini-batch brings, each as `split` returns it.
        """
        order, running = self.layout.order, self.layout.running
        parts = tuple((part if order is None else part[order]).flatten(0, 1) for part in state)
        segment = max(1, KEPT // max(1, sum(part.numel() * part.element_size() for part in parts)))
        if len(running) <= segment or not torch.is_grad_enabled():
            y, *parts_after = self._turns(step, range(len(running)), len(parts), *parts, *inputs)
        else:
            y, parts_after = self._checkpointed(step, parts, inputs, segment)
        after = (part.unflatten(0, (-1, self.H)) for part in parts_after)
        return y, tuple(part if order is None else part[self.layout.inverse] for part in after)

    def _checkpointed(self, step: Step, parts: Parts, inputs: Parts, segment: int) -> tuple[Tensor, list[Tensor]]:
        running, outputs, held = self.layout.running, [], list(parts)
        segments = [range(len(running))[a : a + segment] for a in range(0, len(running), segment)]
        sizes = [self.H * sum(running[j] for j in turns) for turns in segments]
        # split, not slices: the gradient of a slice is as long as the whole, and there is one for each turn
        for turns, *x in zip(segments, *(y.split(sizes) for y in inputs), strict=True):
            y, *held = checkpoint(
                self._turns, step, turns, len(held), *held, *x, use_reentrant=False, preserve_rng_state=False
            )
            outputs.append(y)
        return torch.cat(outputs), held

    def _turns(self, step: Step, turns: range, held: int, *tensors: Tensor) -> Parts:
        """Some turns: their outputs, and the state of all sequences after them."""
        sizes = [self.H * self.layout.running[j] for j in turns]
        state, inputs = tensors[:held], tensors[held:]
        outputs, stopped = [], []
        for j, rows, *x in zip(turns, sizes, *(y.split(sizes) for y in inputs), strict=True):
            if rows < state[0].shape[0]:  # sequences are sorted by length: those that have ended are the last
                stopped.append(tuple(part[rows:] for part in state))
                state = tuple(part[:rows] for part in state)
            y, state = step(state, tuple(x), Turn(self.resumed and j == 0, self._full(j, x[0])))
            outputs.append(y)
        if stopped:
            stopped.append(state)
            state = tuple(torch.cat(part[::-1]) for part in zip(*stopped, strict=True))
        return torch.cat(outputs), *state

    def _full(self, j: int, like: Tensor) -> Tensor | None:
        full = [end >= (j + 1) * self.size for end in self._sorted[: self.layout.running[j]]]
        if all(full):
            return None
        return like.new_tensor(full).repeat_interleave(self.H)[:, None, None]
