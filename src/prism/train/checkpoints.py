"""Checkpoints: folders of safetensors and JSON that appear whole, with checksums. Never a pickle."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from prism.errors import InputError
from prism.files import checksum, flush, writing
from prism.train.fsdp import divided_as
from prism.train.shards import load_shards, own_rows, shard_name, sharded_rows, split_rows, wait

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
    for dead in folder.glob(f".{kind}-*.part"):
        shutil.rmtree(dead, ignore_errors=True)
    return target


def save_shards(
    folder: Path,
    kind: str,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    facts: Any,
    *,
    model: nn.Module,
    keep: int = 1,
) -> None:
    """`save` by all processes together: each writes the rows that it alone has, the first one everything else."""
    rows = sharded_rows(model)
    split = {name: split_rows(values, rows) for name, values in tensors.items()}
    group = next(iter(rows.values()))
    first = group.rank == 0
    target = _next(folder, kind, step)
    part = folder / f".{target.name}.sharded.part"
    if first:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    wait(group)
    with writing(target):
        for name, (_, mine) in split.items():
            _save_file(mine, part / shard_name(name, group.rank))
        wait(group)
        if first:
            _write(part, {name: whole for name, (whole, _) in split.items()}, facts)
            os.replace(part, target)
            flush(folder)
    wait(group)
    if first:
        for old in checkpoints(folder, kind)[keep:]:
            shutil.rmtree(old, ignore_errors=True)


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


def load_tensors(checkpoint: Path, name: str, rows: tuple[int, int] | None = None) -> dict[str, Tensor]:
    """One of the files of tensors, and with it what several processes wrote beside it: all rows, or some."""
    from safetensors.torch import load_file

    whole: dict[str, Tensor] = _read(checkpoint / f"{name}.safetensors", load_file)
    return whole | load_shards(checkpoint, name, rows, lambda path: _read(path, lambda found: found))


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Puts a checkpoint's weights into a model of the same shape."""
    try:
        now = model.state_dict()
        kept = load_tensors(checkpoint, "model", own_rows(model))
        model.load_state_dict({name: divided_as(x, now.get(name, x)) for name, x in kept.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{checkpoint} is not a checkpoint of this model (of another version? fit it again): {reason}"
        ) from None


def _write(part: Path, tensors: Mapping[str, Mapping[str, Tensor]], facts: Any) -> None:
    part.mkdir(parents=True, exist_ok=True)
    for name, values in tensors.items():
        _save_file(values, part / f"{name}.safetensors")
    (part / "facts.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    sums = {file.name: checksum(file) for file in sorted(part.iterdir())}
    (part / CHECKSUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
    for file in part.iterdir():
        file.chmod(part.stat().st_mode & 0o666)  # safetensors lets only the owner read
    for file in [*part.iterdir(), part]:
        flush(file)


def _save_file(values: Mapping[str, Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    own = {key: value.detach().cpu().contiguous() for key, value in values.items()}
    try:
        save_file(own, path)
    except SafetensorError as error:  # its way to say that the disk is full
        raise OSError(str(error)) from None


def _read(path: Path, reader: Any) -> Any:
    try:
        found = reader(path)
        sums = path.with_name(CHECKSUMS)
        known = json.loads(sums.read_text(encoding="utf-8")) if sums.exists() else {path.name: None}  # an older one
        right = known[path.name] in (None, checksum(path))
    except FileNotFoundError:
        raise Damaged(f"{path} does not exist: is {path.parent} a checkpoint?") from None
    except Exception as error:  # safetensors and json have errors of their own for a damaged file
        raise Damaged(f"{path} cannot be read ({error}): it is damaged or of another kind") from None
    if not right:
        raise Damaged(f"{path} is damaged: it is not what was written, by its checksum; restore it from a copy")
    return found
