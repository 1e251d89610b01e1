"""Items that stand for the catalogue in one step: drawn once each, by chances, and other sequences' targets.

Item i is drawn with chance π_i = min(1, c q_i), q a mixture of popularity and of a uniform distribution, c such that
the chances add up to the number of draws: popular items are always there, the others as often as q says, none twice.
One random number draws them all: with B_i = Σ_{j ≤ i} π_j and u uniform in [0, 1), the items in whose part of the line
u, u + 1, u + 2, … lie. Among n targets of other sequences i is expected n p_i times more, so that E_i = π_i + n p_i. A
sequence's own targets are not drawn for it: what a user takes next does not come by popularity p.

A step sees only the rows of its events, targets and drawn items, under new codes: its cost does not grow with the
catalogue.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from prism.ops.additions import Additions
from prism.ops.sampled_loss import Drawn


class Proposal(NamedTuple):
    """What items are drawn from."""

    below: Float[Tensor, " I"]
    """B: the sum of the chances up to each item; the last is the number of draws."""
    number: int
    chance: Float[Tensor, " I"]
    """π: of each item to be among the draws."""
    share: Float[Tensor, " I"]
    """p: each item's share of the events."""

    def items(self) -> Int[Tensor, " M"]:
        """Drawn by their chances, no item twice."""
        points = torch.arange(self.number, dtype=self.below.dtype, device=self.below.device)
        points += torch.rand((), dtype=self.below.dtype, device=self.below.device)
        return torch.searchsorted(self.below, points, right=True).clamp_(max=len(self.below) - 1)

    def to(self, device: torch.device) -> "Proposal":
        """The same on a device."""
        return Proposal(self.below.to(device), self.number, self.chance.to(device), self.share.to(device))


class Compact(NamedTuple):
    """A batch in codes of the rows that it uses; the start token has the last."""

    used: Int[Tensor, " U"]
    """The catalogue's code of each row, in order."""
    tokens: Int[Tensor, " N"]
    targets: Int[Tensor, " N"]
    drawn: Int[Tensor, " M"]
    named: Int[Tensor, "N S"]
    """Codes; -1 as before."""


def proposal(counts: Int[Tensor, " I"], negatives: int, uniform: float) -> Proposal:
    """For so many draws, from how many training events each item has; q has a share `uniform` that is uniform."""
    share = counts.double() / max(int(counts.sum()), 1)
    q = uniform / len(counts) + (1 - uniform) * share
    always = torch.zeros(len(q), dtype=torch.bool, device=q.device)
    count, scale = min(negatives, len(q)), 0.0
    while count > int(always.sum()):
        scale = (count - int(always.sum())) / float(q[~always].sum())
        more = (scale * q >= 1) & ~always
        if not more.any():
            break
        always |= more
    chance = (scale * q).masked_fill_(always, 1.0)
    below = chance.cumsum(0)
    return Proposal(below * (count / below[-1]), count, chance, share)


def draw(source: Proposal, targets: Int[Tensor, " N"], limits: Int[Tensor, " S_and_1"], *, shared: int) -> Drawn:
    """The draws of `source` and `shared` of the batch's targets."""
    token = torch.randperm(len(targets), device=targets.device)[:shared]
    items = torch.cat([source.items(), targets[token]])
    return with_targets(items, torch.stack([source.chance[items], source.share[items]], 1), token, limits)


def with_targets(
    items: Int[Tensor, " M"], told: Float[Tensor, "M 2"], token: Int[Tensor, " T"], limits: Int[Tensor, " S_and_1"]
) -> Drawn:
    """Drawn items of which the last are the targets of some tokens, drawn for the other sequences alone.

    Of each is told how often the draws alone should bring it, and its share of the training events.
    """
    expected, share = told.T
    sequence = torch.searchsorted(limits, token, right=True) - 1
    others = len(token) - torch.bincount(sequence, minlength=len(limits) - 1)
    log_expected = (expected + others[:, None] * share).log_()
    place = len(items) - len(token) + torch.arange(len(token), device=items.device)
    log_expected[sequence, place] = torch.inf
    return Drawn(items, log_expected, limits)


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
