"""Items that stand for the catalogue in one step: drawn uniformly, by popularity, and other sequences' targets.

Item i is expected E_i = u / I + m p_i + n p_i times among u uniform draws, m training events drawn at random (which are
items drawn by popularity p, without a table of chances) and n targets of other sequences: the balance heuristic of a
mixture of proposals. A sequence's own targets are not drawn for it: what a user takes next does not come by p.

A step sees only the rows of its events, targets and drawn items, under new codes: its cost does not grow with the
catalogue.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Proposal(NamedTuple):
    """What popularity draws come from."""

    events: Int[Tensor, " E"]
    """The item of each training event."""
    share: Float[Tensor, " I"]
    """Each item's share of them."""


class Negatives(NamedTuple):
    """Drawn items and how often each was expected, for each sequence of the batch."""

    items: Int[Tensor, " M"]
    log_expected: Float[Tensor, "S M"]


class Compact(NamedTuple):
    """A batch in codes of the rows that it uses; the start token has the last."""

    used: Int[Tensor, " U"]
    """The catalogue's code of each row, in order."""
    tokens: Int[Tensor, " N"]
    targets: Int[Tensor, " N"]
    drawn: Int[Tensor, " M"]


def proposal(items: Int[Tensor, " E"], count: int) -> Proposal:
    """Of the training events' items, in a catalogue of `count`."""
    share = torch.bincount(items, minlength=count).double() / max(len(items), 1)
    return Proposal(items, share)


def draw(
    source: Proposal,
    targets: Int[Tensor, " N"],
    limits: Int[Tensor, " S_and_1"],
    *,
    negatives: int,
    uniform: float,
    shared: int,
) -> Negatives:
    """`negatives` draws, a share `uniform` of them uniform, and `shared` of the batch's targets."""
    device, count = targets.device, len(source.share)
    flat = round(negatives * uniform)
    anywhere = torch.randint(count, (flat,), device=device)
    popular = source.events[torch.randint(len(source.events), (negatives - flat,), device=device)]
    token = torch.randperm(len(targets), device=device)[:shared]
    items = torch.cat([anywhere, popular.long(), targets[token]])
    sequence = torch.searchsorted(limits, token, right=True) - 1
    others = len(token) - torch.bincount(sequence, minlength=len(limits) - 1)
    share = source.share[items]
    expected = (flat / count + (negatives - flat) * share) + others[:, None] * share
    log_expected = expected.log_().float()
    log_expected[sequence, negatives + torch.arange(len(token), device=device)] = torch.inf
    return Negatives(items, log_expected)


def compact(tokens: Int[Tensor, " N"], targets: Int[Tensor, " N"], drawn: Int[Tensor, " M"], start: int) -> Compact:
    """The rows that are used, and everything in their codes."""
    every = torch.cat([tokens, targets, drawn, tokens.new_tensor([start])])
    used, codes = every.unique(return_inverse=True)  # sorted: the start token's code is the largest
    a, b, c, _ = codes.split([len(tokens), len(targets), len(drawn), 1])
    return Compact(used, a, b, c)
