"""Weights of which every process has some rows: which they are, and their files, which any number of them can read.

A checkpoint that several processes wrote has, beside `model.safetensors`, a file `model-00000.safetensors` for each,
with its rows of every tensor that is divided: those of the weight, and of what the optimiser remembers of it. Rows lie
in the order of the files. No pickle: torch.distributed.checkpoint would need one for its index.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from prism.ops.sharded.rows import Rows


class Sharded(nn.Module):
    """A module whose parameter `weight` holds this process's rows of a larger one."""

    weight: nn.Parameter
    rows: Rows


def sharded_rows(model: nn.Module) -> dict[str, Rows]:
    """The divided weights by name."""
    return {
        f"{name}.weight".lstrip("."): part.rows for name, part in model.named_modules() if isinstance(part, Sharded)
    }


def own_rows(model: nn.Module) -> tuple[int, int] | None:
    """The rows that this process has of the divided weight; None: there is none, or it has all."""
    found = list(sharded_rows(model).values())
    if len(found) > 1:
        raise NotImplementedError("a model has one divided weight at most")
    return found[0].range() if found else None


def split_rows(tensors: Mapping[str, Tensor], rows: Mapping[str, Rows]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(what every process has, what has rows of a divided weight), of a model's tensors or its optimiser's."""
    divided = {
        key
        for key, value in tensors.items()
        for name, own in rows.items()
        if (key == name or key.startswith(f"{name}.")) and value.ndim and len(value) == own.count
    }
    whole = {key: value for key, value in tensors.items() if key not in divided}
    return whole, {key: tensors[key] for key in divided}


def shard_name(name: str, rank: int) -> str:
    """The file of one process."""
    return f"{name}-{rank:05d}.safetensors"


def load_shards(
    checkpoint: Path, name: str, rows: tuple[int, int] | None, verify: Callable[[Path], Path]
) -> dict[str, Tensor]:
    """Rows first … end − 1 (None: all) of every divided tensor, from as many files as hold them."""
    from safetensors import safe_open

    found: dict[str, list[Tensor]] = {}
    start = 0
    for path in sorted(checkpoint.glob(f"{name}-*.safetensors")):
        verify(path)
        with safe_open(path, framework="pt") as file:
            count = 0
            for key in file.keys():  # noqa: SIM118 (no mapping)
                part = file.get_slice(key)
                count = part.get_shape()[0]
                a, b = (0, count) if rows is None else (max(rows[0] - start, 0), min(rows[1] - start, count))
                if a < b or (rows is not None and rows[0] == rows[1]):
                    found.setdefault(key, []).append(part[a : max(a, b)])
            start += count
    return {key: torch.cat(parts) for key, parts in found.items()}


def wait(rows: Rows) -> None:
    """Until every process is here."""
    if rows.group is not None:
        dist.barrier(group=rows.group)
