"""The short convolution over segments: the last W−1 tokens of those before, exchanged once, are its history."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.autograd import once
from prism.ops.context.segment import Segment


def history_across(x: Float[Tensor, "B T D"], past: int, segment: Segment) -> Float[Tensor, "N past D"]:
    """The `past` tokens before each piece of a sequence that lies here: zeros where a sequence begins.

    All processes of the segment's group call it together, and again in the backward pass.
    """
    if not past:
        return x.new_zeros(x.shape[0] if segment.packing is None else len(segment.packing), 0, x.shape[2])
    found = _Before.apply(_tail(x, past, segment), segment)  # type: ignore[no-untyped-call]
    packing = segment.packing
    if packing is None or len(packing) == 1:
        return found
    return torch.cat([found, x.new_zeros(len(packing) - 1, past, x.shape[2])])


def _tail(x: Tensor, past: int, segment: Segment) -> Tensor:
    """[N, past, D]: the last tokens of the last piece, behind zeros where they are fewer."""
    count = min(past, segment.last_piece(segment.rank))
    return torch.cat([x.new_zeros(x.shape[0], past - count, x.shape[2]), x[:, x.shape[1] - count :]], 1)


def _places(segment: Segment, past: int, rank: int) -> list[int]:
    """Where in the row of all tails each token of a process's history lies; −1: before the sequence's beginning."""
    found: list[int] = []
    on, before = segment.continues[rank], rank
    while on and before > 0 and len(found) < past:
        before -= 1
        count = min(past, segment.last_piece(before))
        found = [before * past + n for n in range(past - count, past)] + found
        on = segment.passes[before]
    found = found[max(0, len(found) - past) :]
    return [-1] * (past - len(found)) + found


class _Before(torch.autograd.Function):
    """Every process's tail → the tokens before this one's first piece."""

    @staticmethod
    def forward(ctx: Any, tail: Tensor, segment: Segment) -> Tensor:
        N, past, D = tail.shape
        row = segment.gather(tail).transpose(0, 1).reshape(N, segment.world * past, D)
        places = _places(segment, past, segment.rank)
        found = torch.zeros_like(tail)
        some = [n for n, place in enumerate(places) if place >= 0]
        found[:, some] = row[:, [places[n] for n in some]]
        ctx.segment = segment
        return found

    @staticmethod
    @once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        segment: Segment = ctx.segment
        past = grad.shape[1]
        every, mine = segment.gather(grad), segment.rank * past
        found = torch.zeros_like(grad)
        for rank in range(segment.rank + 1, segment.world):
            for n, place in enumerate(_places(segment, past, rank)):
                if mine <= place < mine + past:
                    found[:, place - mine] += every[rank][:, n]
        return found, None
