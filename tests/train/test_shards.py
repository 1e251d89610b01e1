"""What several processes wrote together, any number of them reads, and nothing in it is ever unpickled."""

import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from support.processes import run_ranks
from torch import Tensor, nn

from prism.errors import InputError
from prism.ops.sharded.rows import Rows
from prism.train import checkpoints
from prism.train.shards import Sharded, own_part, place_in, sharded_rows, spread

ROWS, DIM = 11, 3


class Table(Sharded):
    def __init__(self, world: int):
        super().__init__()
        self.rows = Rows(ROWS, dist.new_group() if world > 1 else None)
        first, end = self.rows.range()
        self.weight = nn.Parameter(numbers()[first:end].clone())


class Net(nn.Module):
    def __init__(self, world: int = 1, *, empty: bool = False):
        super().__init__()
        self.table, self.dense = Table(world), nn.Linear(DIM, 2)
        self.register_buffer("known", torch.tensor(True))
        with torch.no_grad():
            self.dense.weight.copy_(torch.arange(6.0).view(2, 3))
            self.dense.bias.fill_(7)
            for weight in self.parameters() if empty else ():
                weight.fill_(torch.nan)


def numbers() -> Tensor:
    return torch.arange(float(ROWS * DIM)).view(ROWS, DIM)


def remembered(model: Net) -> dict[str, Tensor]:
    """As an optimiser has it: for rows, for a dense weight, and one number."""
    first, end = model.table.rows.range()
    rows = {"table.weight.exp_avg": 2 * numbers()[first:end], "table.weight.row_steps": torch.arange(ROWS)[first:end]}
    return rows | {"dense.weight.exp_avg": torch.ones(2, 3), "dense.weight.step": torch.tensor(5.0)}


def write(rank: int, world: int, out: Path) -> None:
    model = Net(world)
    rows = sharded_rows(model)
    tensors = {"model": model.state_dict(), "optimiser": remembered(model)}
    parts = {name: spread(values, rows) for name, values in tensors.items()}
    checkpoints.save_together(out, "last", 3, parts, {"step": 3}, keep=1)


def read(rank: int, world: int, out: Path) -> None:
    model, found = Net(world, empty=True), checkpoints.newest(out, "last")
    assert found is not None
    checkpoints.load_weights(model, found)
    for name, value in Net(world).state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, msg=name)
    rows = sharded_rows(model)
    kept = checkpoints.load_tensors(found, "optimiser", place_in(model))
    assert kept.keys() == remembered(model).keys()
    for key, value in remembered(model).items():
        torch.testing.assert_close(own_part(kept[key], key, rows), value, msg=key)


def test_what_a_kill_left_of_a_checkpoint_of_some_processes_goes_with_the_next(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for left in (".last-000007-step9.together.part", ".last-000002-step1.41.part", ".best-000001-step1.together.part"):
        (out / left / "model").mkdir(parents=True)
    run_ranks(2, write, 2, out)
    assert {path.name for path in out.iterdir()} == {"last-000001-step3", ".best-000001-step1.together.part"}


@pytest.mark.parametrize("written", [1, 2, 4])
def test_a_checkpoint_of_some_processes_is_read_by_one_by_two_and_by_four(written: int, tmp_path: Path) -> None:
    run_ranks(written, write, written, tmp_path)
    for world in (1, 2, 4):
        run_ranks(world, read, world, tmp_path)
    read(0, 1, tmp_path)  # without any other process, and no group of them
    whole = checkpoints.load_tensors(checkpoints.newest(tmp_path, "last"), "model")
    torch.testing.assert_close(whole["table.weight"], numbers())


def test_each_process_wrote_its_rows_alone_and_what_all_have_is_written_once(tmp_path: Path) -> None:
    run_ranks(2, write, 2, tmp_path)
    shapes: dict[str, list[list[int]]] = {}
    for path in sorted((checkpoints.newest(tmp_path, "last") / "model").iterdir()):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 (no mapping)
                shapes.setdefault(key, []).append(file.get_slice(key).get_shape())
    assert shapes == {"table.weight": [[6, 3], [5, 3]], "dense.weight": [[2, 3]], "dense.bias": [[2]], "known": [[]]}


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.path),)


def test_no_file_is_a_pickle_and_one_that_is_put_there_is_not_loaded(tmp_path: Path) -> None:
    run_ranks(2, write, 2, tmp_path)
    found = checkpoints.newest(tmp_path, "last")
    kinds = {path.suffix for path in found.rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json"}
    for folder in ("model", "optimiser"):
        (found / folder / ".metadata").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    read(0, 1, tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_a_damaged_part_is_told_and_so_is_a_model_of_another_shape(tmp_path: Path) -> None:
    run_ranks(2, write, 2, tmp_path)
    found = checkpoints.newest(tmp_path, "last")
    other = Net()
    other.dense = nn.Linear(DIM, 4)
    with pytest.raises(InputError, match="not a checkpoint of this model"):
        checkpoints.load_weights(other, found)
    part = max((found / "model").iterdir())
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(checkpoints.Damaged, match="by its checksum"):
        checkpoints.load_weights(Net(), found)
    part.unlink()
    with pytest.raises(checkpoints.Damaged, match="is missing"):
        checkpoints.load_weights(Net(), found)
    for junk in (b"", b"{", b"[]", b"\xff"):
        (found / "checksums.json").write_bytes(junk)
        with pytest.raises(checkpoints.Damaged, match=r"checksums.json cannot be read"):
            checkpoints.load_weights(Net(), found)
