"""Checkpoints: folders of safetensors and JSON that appear whole, with checksums. Never a pickle."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prism.errors import InputError
from prism.files import checksum, flush, writing
from prism.train.fsdp import divided_as
from prism.train.processes import all_of, rank, wait, world
from prism.train.shards import Place, own_part, read_parts, sharded_rows, spread, whole_tensor, write_parts

CHECKSUMS = "checksums.json"


class Damaged(InputError):
    """A checkpoint is not what was written."""


def save(
    folder: Path, kind: str, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Any, *, keep: int = 1
) -> Path:
    """Writes `folder/kind-serial-step` with one safetensors file for each of `tensors` and `facts` as JSON.

    Everything is written under another name and flushed to the disk before the folder gets its own; all but the
    newest `keep` of the kind go after that. So there is a newest, and it is complete, at every moment.
    """
    target = _next(folder, kind, step)
    part = folder / f".{target.name}.{os.getpid()}.part"
    with writing(target):
        try:
            _write(part, tensors, facts)
            os.replace(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        flush(folder)
    for old in checkpoints(folder, kind)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    _clear(folder, kind)
    return target


def save_together(
    folder: Path, kind: str, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Any, *, keep: int = 1
) -> None:
    """`save` by all processes, each of which has parts of the tensors: a folder of files for each of `tensors`."""
    target = _next(folder, kind, step)
    part = folder / f".{target.name}.together.part"
    first = rank() == 0
    if first:
        _clear(folder, kind)
        part.mkdir(parents=True)
    wait()
    with writing(target):
        for name, values in tensors.items():
            write_parts(part / name, values)  # ends for all at once
        sums = all_of(_checksums(part, sorted(part.rglob("*.safetensors"))[rank() :: world()]))
        if first:
            _write(part, {}, facts, sums)
            os.replace(part, target)
            flush(folder)
    wait()
    if first:
        for old in checkpoints(folder, kind)[keep:]:
            shutil.rmtree(old, ignore_errors=True)


def _clear(folder: Path, kind: str) -> None:
    """Removes what was left of checkpoints that a kill ended before they were whole."""
    for dead in folder.glob(f".{kind}-*.part"):
        shutil.rmtree(dead, ignore_errors=True)


def _checksums(part: Path, files: Iterable[Path]) -> dict[str, str]:
    return {file.relative_to(part).as_posix(): checksum(file) for file in files}


def _next(folder: Path, kind: str, step: int) -> Path:
    before = newest(folder, kind)
    serial = 1 if before is None else int(before.name.split("-")[1]) + 1
    return folder / f"{kind}-{serial:06d}-step{step}"


def checkpoints(folder: Path, kind: str) -> list[Path]:
    """All of a kind, the newest first; what only looks like one (`last-backup`) is left alone."""
    form = re.compile(rf"{kind}-\d{{6,}}-step\d+")
    found = [path for path in folder.glob(f"{kind}-*") if path.is_dir() and form.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.split("-")[1]), reverse=True)


def newest(folder: Path, kind: str) -> Path | None:
    """The newest checkpoint of a kind."""
    return next(iter(checkpoints(folder, kind)), None)


def load_facts(checkpoint: Path) -> Any:
    """What `save` was given as facts."""
    return _read(checkpoint / "facts.json", lambda path: json.loads(path.read_text(encoding="utf-8")))


def load_tensors(checkpoint: Path, name: str, place: Place = whole_tensor) -> dict[str, Tensor]:
    """One of the groups of tensors; where several processes wrote it together, to where `place` says."""
    from safetensors.torch import load_file

    parts = checkpoint / name
    if parts.is_dir():
        for file in _known(checkpoint):
            if file.startswith(f"{name}/") and not (checkpoint / file).is_file():
                raise Damaged(f"{checkpoint / file} is missing: what the processes wrote belongs together; restore it")
        return _guarded(parts, lambda: read_parts(parts, place, lambda path: _verify(path, checkpoint)))
    whole: dict[str, Tensor] = _read(checkpoint / f"{name}.safetensors", load_file)
    return whole


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Puts a checkpoint's weights into a model of the same shape."""
    now, rows = model.state_dict(), sharded_rows(model)
    own = spread(now, rows)

    def place(key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        mine = own.get(key)  # a weight is read to where it is: a table has no room beside itself
        return whole_tensor(key, size, dtype) if mine is None or mine.shape != size else mine.detach()

    try:
        kept = load_tensors(checkpoint, "model", place)
        found = {key: own_part(value, key, rows) for key, value in kept.items()}
        model.load_state_dict({key: divided_as(value, now.get(key, value)) for key, value in found.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{checkpoint} is not a checkpoint of this model (of another version? fit it again): {reason}"
        ) from None


def _write(
    part: Path, tensors: Mapping[str, Mapping[str, Tensor]], facts: Any, known: Mapping[str, str] | None = None
) -> None:
    """With the checksums that are `known` already."""
    part.mkdir(parents=True, exist_ok=True)
    for name, values in tensors.items():
        _save_file(values, part / f"{name}.safetensors")
    (part / "facts.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    sums = dict(known or {}) | _checksums(part, (file for file in sorted(part.iterdir()) if file.is_file()))
    (part / CHECKSUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
    for file in part.rglob("*.*"):
        file.chmod(part.stat().st_mode & 0o666)  # safetensors lets only the owner read
    for file in [*part.rglob("*"), part]:
        flush(file)


def _save_file(values: Mapping[str, Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    own = {key: value.detach().cpu().contiguous() for key, value in values.items()}
    try:
        save_file(own, path)
    except SafetensorError as error:  # its way to say that the disk is full
        raise OSError(str(error)) from None


def _read(path: Path, reader: Callable[[Path], Any]) -> Any:
    def read() -> Any:
        found = reader(path)
        _verify(path, path.parent)
        return found

    return _guarded(path, read)


def _guarded(path: Path, read: Callable[[], Any]) -> Any:
    """What `read` gives; any error of it becomes one line."""
    try:
        return read()
    except FileNotFoundError:
        raise Damaged(f"{path} does not exist: is {path.parent} a checkpoint?") from None
    except Damaged:
        raise
    except Exception as error:  # safetensors and json have errors of their own for a damaged file
        raise Damaged(f"{path} cannot be read ({error}): it is damaged or of another kind") from None


def _verify(path: Path, checkpoint: Path) -> None:
    """Refuses a file that is not what was written."""
    known, name = _known(checkpoint), path.relative_to(checkpoint).as_posix()
    if known and known[name] != checksum(path):
        raise Damaged(f"{path} is damaged: it is not what was written, by its checksum; restore it from a copy")


def _known(checkpoint: Path) -> dict[str, str]:
    """The checksum of each file; older checkpoints have none."""
    sums = checkpoint / CHECKSUMS

    def read() -> dict[str, str]:
        return {str(file): str(sum_) for file, sum_ in json.loads(sums.read_text(encoding="utf-8")).items()}

    known: dict[str, str] = _guarded(sums, read) if sums.exists() else {}
    return known
