"""Negatives drawn where the rows are: each process draws among its own items and says how often each was expected.

Process r has I_r items with C_r training events. It draws u_r of them uniformly and m_r by popularity: item i of its
own is expected E_i = u_r / I_r + m_r c_i / C_r times, exactly, however the draws were shared out (u_r about as I_r and
at least 1, m_r about as C_r). All processes then use all draws, u and m in sum. No process knows how popular another's
items are: what is exchanged are codes and two numbers for each drawn item, and for each target that stands as one.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from prism.errors import InputError
from prism.ops.sampled_loss import Drawn
from prism.ops.sharded.rows import Route, Rows
from prism.recommend.training.negatives import with_targets


@dataclass(frozen=True, eq=False)
class Shard:
    """What one process draws from: its own items."""

    rows: Rows
    counts: Int[Tensor, " own"]
    """Training events of each."""
    below: Float[Tensor, " own"]
    """Those of all up to each: a draw by popularity is the first with more than a uniform number."""
    total: float
    """Training events of all processes' items."""
    flat: int
    popular: int

    @classmethod
    def of(cls, counts: Int[Tensor, " own"], rows: Rows, *, negatives: int, uniform: float) -> "Shard":
        """From the counts of this process's items; all processes call it together."""
        sizes = torch.zeros(rows.world, 2, dtype=torch.float64, device=counts.device)
        sizes[rows.rank, 0], sizes[rows.rank, 1] = len(counts), counts.sum()
        rows.sum(sizes, "draws")
        items, events = sizes.T.tolist()
        flat = round(negatives * uniform)
        holders = sum(size > 0 for size in items)
        if flat < holders:
            raise InputError(
                f"negatives is {negatives}, of which {flat} are drawn uniformly: fewer than the {holders} processes "
                "that have items; give more, what is never drawn is never pushed down"
            )
        return cls(
            rows=rows,
            counts=counts,
            below=counts.double().cumsum(0),
            total=sum(events),
            flat=apportioned(flat, items, least=1)[rows.rank],
            popular=apportioned(negatives - flat, events)[rows.rank],
        )

    def drawn(self) -> Int[Tensor, " draws"]:
        """Items of this process, by their place among them."""
        device, count = self.counts.device, len(self.counts)
        anywhere = torch.randint(max(count, 1), (self.flat,), device=device)
        number = torch.rand(self.popular, dtype=torch.float64, device=device)
        if not self.popular:
            return anywhere
        found = torch.searchsorted(self.below, number * self.below[-1], right=True)
        return torch.cat([anywhere, found.clamp_(max=count - 1)])

    def told(self, own: Int[Tensor, " asked"]) -> Float[Tensor, "asked 2"]:
        """(how often the draws should bring it, its share of all training events) of items of this process."""
        counts = self.counts[own].double()
        expected = torch.full_like(counts, self.flat / max(len(self.counts), 1))
        if self.popular:
            expected = expected + self.popular * (counts / self.below[-1])
        return torch.stack([expected, counts / self.total], 1)


def draw_shards(shard: Shard, targets: Int[Tensor, " N"], limits: Int[Tensor, " S_and_1"], *, shared: int) -> Drawn:
    """All processes' draws, and `shared` of this one's targets; all processes call it together."""
    own = shard.drawn()
    items = torch.cat(shard.rows.gather(own + shard.rows.range()[0], "draws"))
    told = torch.cat(shard.rows.gather(shard.told(own), "draws"))
    token = torch.randperm(len(targets), device=targets.device)[:shared]
    route = Route(targets[token], shard.rows)
    told = torch.cat([told, route.answered(shard.told(route.local), "draws")])
    return with_targets(torch.cat([items, targets[token]]), told, token, limits)


def apportioned(total: int, weights: list[float], least: int = 0) -> list[int]:
    """`total` in whole parts nearly as the weights are, those above 0 with `least` first; largest remainders win."""
    first = [least if weight > 0 else 0 for weight in weights]
    left, whole = total - sum(first), sum(weights)
    wanted = [left * weight / whole if whole else 0.0 for weight in weights]
    parts = [int(part) for part in wanted]
    by = sorted(range(len(weights)), key=lambda n: (parts[n] - wanted[n], n))
    for n in by[: left - sum(parts)]:
        parts[n] += 1
    return [a + b for a, b in zip(first, parts, strict=True)]
