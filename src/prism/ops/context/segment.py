"""Which tokens of a sequence, or of packed ones, each of several processes holds, and how they reach each other."""

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from prism.errors import InputError
from prism.ops.common.packing import Bounds, Packing


@dataclass(frozen=True, eq=False)
class Segment:
    """This process's part: tokens cuts[rank] … cuts[rank + 1] − 1 of every row, or of the one packed row."""

    group: Any
    """The processes that share the sequence, in the order of their tokens."""
    rank: int
    cuts: Bounds
    """Where each process's tokens begin, and the end of the last's."""
    bounds: Bounds | None = None
    """Limits of the packed sequences, of all processes together; None: every row is one sequence."""

    @classmethod
    def of(
        cls,
        group: Any,
        tokens: int,
        cu_seqlens: Tensor | Packing | None,
        B: int = 1,
        device: torch.device | None = None,
    ) -> "Segment":
        """The segment of `tokens` tokens that this process has; the others say how many they have.

        They say it on the device given, that of the activations; without, on one that the group reaches.
        """
        mine = torch.tensor([tokens], device=device or _reached(group))
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(every, mine, group=group)
        cuts = (0, *accumulate(torch.cat(every).tolist()))
        packing = Packing.of(cu_seqlens, B, cuts[-1])
        return cls(group, dist.get_rank(group), cuts, None if packing is None else packing.bounds)

    @property
    def world(self) -> int:
        """How many processes there are."""
        return len(self.cuts) - 1

    @cached_property
    def packing(self) -> Packing | None:
        """The sequences, or parts of sequences, that lie here; None: every row is one."""
        return None if self.bounds is None else Packing(self._pieces(self.rank))

    def _pieces(self, rank: int) -> Bounds:
        """Local limits; where no token is, one sequence without any."""
        assert self.bounds is not None
        a, b = self.cuts[rank], self.cuts[rank + 1]
        inside = sorted({n - a for n in self.bounds if a < n < b})
        return (0, *inside, b - a)

    @cached_property
    def continues(self) -> tuple[bool, ...]:
        """Whether each process's first piece began on an earlier one."""
        if self.bounds is None:
            return tuple(rank > 0 for rank in range(self.world))
        starts = set(self.bounds[:-1])
        last = self.cuts[-1]
        return tuple(
            rank > 0 and self.cuts[rank] not in starts and self.cuts[rank] < last for rank in range(self.world)
        )

    @cached_property
    def passes(self) -> tuple[bool, ...]:
        """Whether what enters each process also leaves it: it holds no limit between sequences."""
        if self.bounds is None:
            return (True,) * self.world
        return tuple(on and len(self._pieces(rank)) == 2 for rank, on in enumerate(self.continues))

    def last_piece(self, rank: int) -> int:
        """Tokens of the last piece of a process."""
        if self.bounds is None:
            return self.cuts[rank + 1] - self.cuts[rank]
        a, b = list(pairwise(self._pieces(rank)))[-1]
        return b - a

    def gather(self, x: Tensor) -> Tensor:
        """[world, …]: every process's tensor, all of one shape; not differentiable."""
        x = x.detach().contiguous()
        every = [torch.empty_like(x) for _ in range(self.world)]
        dist.all_gather(every, x, group=self.group)
        return torch.stack(every)


def _reached(group: Any) -> str:
    """The CPU, for which no device must wait, if the group can send from there; else its GPU (NCCL has no other)."""
    kinds = [kind for kind, _ in (pair.split(":") for pair in dist.get_backend_config(group).split(","))]
    return "cpu" if "cpu" in kinds else kinds[0]


@cache
def context_group(size: int, device: str) -> Any:
    """The processes that share sequences with this one: `size` neighbours in the order of their ranks."""
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if world % size:
        raise InputError(f"{size} processes share a sequence, and there are {world}: start a multiple with torchrun")
    mesh = init_device_mesh(device, (world // size, size), mesh_dim_names=("data", "context"))
    return mesh["context"].get_group()


def share_of(tokens: int, size: int, device: str) -> tuple[int, int]:
    """The first token of this process's even share of so many, and one past the last."""
    rank = dist.get_rank(context_group(size, device)) if size > 1 else 0
    return tokens * rank // size, tokens * (rank + 1) // size
