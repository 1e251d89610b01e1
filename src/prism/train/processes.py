"""The processes that train together, which may be one."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from prism.train.task import Apart

Found = TypeVar("Found")


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


def of_first(mine: Found, device: torch.device) -> Found:
    """What the first process found, on all that torchrun started to train on such a device; they need not have met."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    PartialState(cpu=device.type == "cpu")
    return cast(Found, broadcast_object_list([mine])[0])


def evaluate_apart(task: Apart, model: nn.Module) -> dict[str, float]:
    """Means of the metrics, each process looking at its part."""
    parts = all_of({str(rank()): task.evaluate_part(model, rank(), world())})
    sums, count = [part[0] for part in parts.values()], sum(part[1] for part in parts.values())
    names = max(sums, key=len)
    return {name: sum(part.get(name, 0.0) for part in sums) / count for name in names}
