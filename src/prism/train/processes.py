"""The processes that train together, which may be one."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist


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
