"""The processes that train together, which may be one."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from prism.train.task import Apart


def rank() -> int:
    """This process's number."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def wait() -> None:
    """Until every process is here."""
    if world() > 1:
        dist.barrier()


def all_of(mine: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of all processes."""
    if world() == 1:
        return dict(mine)
    every: list[dict[str, Any]] = [{} for _ in range(world())]
    dist.all_gather_object(every, dict(mine))
    return {key: value for part in every for key, value in part.items()}


def evaluate_apart(task: Apart, model: nn.Module) -> dict[str, float]:
    """Means of the metrics, each process looking at its part."""
    parts = all_of({str(rank()): task.evaluate_part(model, rank(), world())})
    sums, count = [part[0] for part in parts.values()], sum(part[1] for part in parts.values())
    names = max(sums, key=len)
    return {name: sum(part.get(name, 0.0) for part in sums) / count for name in names}
