"""Weights of which every process has some, and their files: torch.distributed.checkpoint on safetensors.

What all processes write together is a folder of safetensors, one for each process, whose headers say which part of
which tensor lies there; any number of processes reads its own parts from it. The format is that of
HuggingFaceStorageWriter: the default of torch.distributed.checkpoint has an index that is a pickle, and no pickle is
ever loaded here.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from prism.errors import InputError
from prism.ops.sharded.rows import Rows
from prism.train.processes import world

# Where a tensor of a name, size and type is to be read to.
Place = Callable[[str, torch.Size, torch.dtype], Tensor]


class Sharded(nn.Module):
    """A module whose parameter `weight` holds this process's rows of a larger one."""

    weight: nn.Parameter
    rows: Rows


def sharded_rows(model: nn.Module) -> dict[str, Rows]:
    """The divided weights by name."""
    return {
        f"{name}.weight".lstrip("."): part.rows for name, part in model.named_modules() if isinstance(part, Sharded)
    }


def spread(tensors: Mapping[str, Tensor], rows: Mapping[str, Rows]) -> dict[str, Tensor]:
    """A model's tensors, or its optimiser's, with those that hold rows of a divided weight as parts of the whole."""
    return {
        key: _part(value, own) if (own := _of(key, rows)) and value.ndim and len(value) == own.count else value
        for key, value in tensors.items()
    }


def place_in(model: nn.Module) -> Place:
    """Where what an optimiser remembers of each weight belongs: divided as the weight is."""
    rows, weights = sharded_rows(model), dict(model.named_parameters())

    def place(key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        weight, own = weights.get(key.rpartition(".")[0]), _of(key, rows)
        if own and size and size[0] == own.total:
            return _part(torch.empty(own.count, *size[1:], dtype=dtype), own)
        if isinstance(weight, DTensor) and size == weight.shape:
            return torch.empty_like(weight, dtype=dtype, requires_grad=False)
        return torch.empty(size, dtype=dtype)

    return place


def whole_tensor(key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """A place for all of it."""
    return torch.empty(size, dtype=dtype)


def own_part(value: Tensor, key: str, rows: Mapping[str, Rows]) -> Tensor:
    """This process's rows of a divided weight; anything else as it is."""
    return value.to_local() if isinstance(value, DTensor) and _of(key, rows) else value


def write_parts(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """By all processes together, each what it alone has and a share of what all have."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    except TypeError:
        raise InputError(f"torch {torch.__version__} cannot write checkpoints of many processes: install 2.9") from None
    own = {key: value.detach() for key, value in tensors.items()}
    _unwrapped(lambda: save(own, storage_writer=writer, no_dist=world() == 1))


def read_parts(folder: Path, place: Place, verify: Callable[[Path], object]) -> dict[str, Tensor]:
    """Every tensor that was written, or the part of it that its place has room for; of the files, those needed."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    class Reader(HuggingFaceStorageReader):
        def read_data(self, plan: Any, planner: Any) -> Any:
            for name in sorted({self.storage_data[one.storage_index].relative_path for one in plan.items}):
                verify(Path(name))
            return super().read_data(plan, planner)

    reader = Reader(str(folder))
    about = cast(dict[str, Any], reader.read_metadata().state_dict_metadata)
    found = {key: place(key, one.size, one.properties.dtype) for key, one in about.items()}
    # no process waits for another: each may read as often and as much as it likes
    _unwrapped(lambda: load(found, storage_reader=reader, no_dist=True))
    return found


def _of(key: str, rows: Mapping[str, Rows]) -> Rows | None:
    """How the weight is divided that a tensor is, or belongs to."""
    return next((own for name, own in rows.items() if key == name or key.startswith(f"{name}.")), None)


def _part(value: Tensor, own: Rows) -> Tensor:
    if own.group is None:
        return value
    mesh = DeviceMesh.from_group(own.group, value.device.type)
    shape = torch.Size((own.total, *value.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(value, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def _unwrapped(call: Callable[[], Any]) -> None:
    """An error of torch.distributed.checkpoint as what caused it, and no warning where a process works alone."""
    from torch.distributed.checkpoint.api import CheckpointException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        try:
            call()
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from None
