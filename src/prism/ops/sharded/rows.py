"""Rows of a table on several processes: ids to their owners and rows back, by all-to-all; gradients the other way."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from prism.ops.common.autograd import once

# Bytes that this process has sent to others, by what for: counted, so that a formula can be held against it.
SENT: Counter[str] = Counter()


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive rows for each process, as many for each but for the last."""

    total: int
    group: Any = None
    """The processes; None: this one alone."""

    @property
    def world(self) -> int:
        return 1 if self.group is None else dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        return 0 if self.group is None else dist.get_rank(self.group)

    @property
    def each(self) -> int:
        """Rows of every process but the last ones."""
        return -(-self.total // self.world)

    def range(self, rank: int | None = None) -> tuple[int, int]:
        """The first row of a process (None: of this one), and one past its last."""
        rank = self.rank if rank is None else rank
        return min(rank * self.each, self.total), min((rank + 1) * self.each, self.total)

    @property
    def count(self) -> int:
        """Rows of this process."""
        first, end = self.range()
        return end - first

    def sum(self, x: Tensor, what: str, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Over all processes, in place."""
        if self.world > 1:
            SENT[what] += x.nbytes
            dist.all_reduce(x, op, group=self.group)
        return x

    def gather(self, x: Tensor, what: str) -> list[Tensor]:
        """Every process's tensor, which may differ in the first axis."""
        if self.world == 1:
            return [x]
        sizes = torch.zeros(self.world, dtype=torch.int64, device=x.device)
        sizes[self.rank] = len(x)
        longest = int(self.sum(sizes, what).max())
        padded = x.new_zeros(longest, *x.shape[1:])
        padded[: len(x)] = x
        every = [torch.empty_like(padded) for _ in range(self.world)]
        SENT[what] += padded.nbytes * (self.world - 1)
        dist.all_gather(every, padded, group=self.group)
        return [part[:n] for part, n in zip(every, sizes.tolist(), strict=True)]


class Route:
    """Where each asked row lies: ids sorted by owner, how many go to and come from each process.

    `local` are the rows that others, and this process, ask of this one.
    """

    def __init__(self, ids: Tensor, rows: Rows):
        self.rows = rows
        owner = ids // rows.each
        self.order = owner.argsort(stable=True)
        self.sent = torch.bincount(owner, minlength=rows.world)
        self.received = torch.empty_like(self.sent)
        self._exchange(self.received, self.sent, [1] * rows.world, [1] * rows.world, "counts")
        self.local = self.forward(ids[self.order], "ids") - rows.range()[0]

    def forward(self, x: Tensor, what: str) -> Tensor:
        """One entry for each asked row, to the owners."""
        found = x.new_empty(int(self.received.sum()), *x.shape[1:])
        return self._exchange(found, x.contiguous(), self.received.tolist(), self.sent.tolist(), what)

    def back(self, x: Tensor, what: str) -> Tensor:
        """One entry for each row that was asked of this process, back to who asked."""
        found = x.new_empty(int(self.sent.sum()), *x.shape[1:])
        return self._exchange(found, x.contiguous(), self.sent.tolist(), self.received.tolist(), what)

    def answered(self, x: Tensor, what: str) -> Tensor:
        """`back`, in the order in which rows were asked for."""
        found = x.new_empty(len(self.order), *x.shape[1:])
        found[self.order] = self.back(x, what)
        return found

    def _exchange(self, found: Tensor, x: Tensor, come: list[int], go: list[int], what: str) -> Tensor:
        if self.rows.world == 1:
            return found.copy_(x)
        SENT[what] += (len(x) - go[self.rows.rank]) * (x.nbytes // max(len(x), 1))
        dist.all_to_all_single(found, x, come, go, group=self.rows.group)
        return found


def lookup(weight: Float[Tensor, "R D"], ids: Int[Tensor, " U"], rows: Rows) -> Float[Tensor, "U D"]:
    """Rows of the whole table by their ids; `weight` holds this process's, and gets a sparse gradient.

    All processes call it together, each with ids of its own, and again in the backward pass.
    """
    return _Lookup.apply(weight, ids, rows)  # type: ignore[no-any-return, no-untyped-call]


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, rows: Rows) -> Tensor:
        route = Route(ids, rows)
        found = route.answered(weight[route.local], "rows")
        ctx.route, ctx.shape = route, weight.shape
        return found

    @staticmethod
    @once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        route: Route = ctx.route
        values = route.forward(grad[route.order], "gradients")
        return torch.sparse_coo_tensor(route.local[None], values, ctx.shape, check_invariants=False), None, None
