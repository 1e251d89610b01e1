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

from prism.ops.softmax_loss import Additions


class Proposal(NamedTuple):
    """What popularity draws come from."""

    events: Int[Tensor, " E"]
    """The item of each training event."""
    share: Float[Tensor, " I"]
    """Each item's share of them."""

    def popular(self, count: int) -> Int[Tensor, " count"]:
        """Items drawn by popularity."""
        return self.events[torch.randint(len(self.events), (count,), device=self.events.device)].long()

    def to(self, device: torch.device) -> "Proposal":
        """The same on a device."""
        return Proposal(*(part.to(device) for part in self))


class Counted(NamedTuple):
    """The same from counts alone, where the events are too many to hold."""

    below: Float[Tensor, " I"]
    """The share of all items up to each: a draw is the first with more than a uniform number."""
    share: Float[Tensor, " I"]

    def popular(self, count: int) -> Int[Tensor, " count"]:
        """Items drawn by popularity."""
        number = torch.rand(count, dtype=self.below.dtype, device=self.below.device) * self.below[-1]
        return torch.searchsorted(self.below, number, right=True).clamp_(max=len(self.below) - 1)

    def to(self, device: torch.device) -> "Counted":
        """The same on a device."""
        return Counted(*(part.to(device) for part in self))


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
    named: Int[Tensor, "N S"]
    """Codes; -1 as before."""


def proposal(items: Int[Tensor, " E"], count: int) -> Proposal:
    """Of the training events' items, in a catalogue of `count`."""
    share = torch.bincount(items, minlength=count).double() / max(len(items), 1)
    return Proposal(items, share)


def counted(counts: Int[Tensor, " I"]) -> Counted:
    """Of how many training events each item has."""
    share = counts.double() / counts.sum()
    return Counted(share.cumsum(0), share)


def draw(
    source: Proposal | Counted,
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
    popular = source.popular(negatives - flat)
    token = torch.randperm(len(targets), device=device)[:shared]
    items = torch.cat([anywhere, popular, targets[token]])
    share = source.share[items]
    return with_targets(items, flat / count + (negatives - flat) * share, share, token, limits)


def with_targets(
    items: Int[Tensor, " M"],
    expected: Float[Tensor, " M"],
    share: Float[Tensor, " M"],
    token: Int[Tensor, " T"],
    limits: Int[Tensor, " S_and_1"],
) -> Negatives:
    """Drawn items of which the last are the targets of some tokens, drawn for the other sequences alone.

    `expected` is how often the draws alone should bring each, `share` its share of the training events.
    """
    sequence = torch.searchsorted(limits, token, right=True) - 1
    others = len(token) - torch.bincount(sequence, minlength=len(limits) - 1)
    log_expected = (expected + others[:, None] * share).log_()
    place = len(items) - len(token) + torch.arange(len(token), device=items.device)
    log_expected[sequence, place] = torch.inf
    return Negatives(items, log_expected)


def compact(
    tokens: Int[Tensor, " N"],
    targets: Int[Tensor, " N"],
    drawn: Int[Tensor, " M"],
    start: int,
    named: Int[Tensor, "N S"] | None = None,
) -> Compact:
    """The rows that are used, and everything in their codes."""
    others = tokens.new_zeros(len(tokens), 0) if named is None else named
    here = others >= 0
    every = torch.cat([tokens, targets, drawn, others[here], tokens.new_tensor([start])])
    used, codes = every.unique(return_inverse=True)  # sorted: the start token's code is the largest
    a, b, c, d, _ = codes.split([len(tokens), len(targets), len(drawn), int(here.sum()), 1])
    return Compact(used, a, b, c, torch.full_like(others, -1).masked_scatter(here, d))


def at_drawn(
    added: Additions, weights: Float[Tensor, "N K"], drawn: Int[Tensor, " M"], items: int
) -> Float[Tensor, "N M"]:
    """Σ weight · feature of the drawn items, for each token."""
    kinds = weights.shape[1] - added.rows.shape[1]
    different, place = drawn.unique(return_inverse=True)
    lookup = torch.full((items,), -1, device=drawn.device)
    lookup[different] = torch.arange(len(different), device=drawn.device)
    column = lookup[added.items.long()]
    kept = column >= 0
    token = torch.repeat_interleave(torch.arange(len(weights), device=drawn.device), added.starts.diff())[kept]
    value = added.values[kept] * weights[token, added.kinds[kept].long()]
    found = weights.new_zeros(len(weights) * len(different))
    found = found.index_add(0, token * len(different) + column[kept], value).view(len(weights), -1)
    for f in range(added.rows.shape[1]):
        found = found + weights[:, kinds + f, None] * added.bank[:, different][added.rows[:, f]]
    return found[:, place]


def at_items(
    added: Additions, features: Float[Tensor, "N S E"], weights: Float[Tensor, "N K"], items: Int[Tensor, "N S"]
) -> Float[Tensor, "N S"]:
    """Σ weight · feature of each token's own items, whose entries are known."""
    kinds = features.shape[-1]
    found = torch.einsum("nse,ne->ns", features, weights[:, :kinds])
    for f in range(added.rows.shape[1]):
        found = found + weights[:, kinds + f, None] * added.bank[added.rows[:, f, None], items.clamp(min=0)]
    return found
