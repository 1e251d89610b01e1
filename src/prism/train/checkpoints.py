"""Checkpoints: folders of safetensors and JSON that appear whole; the newest of a kind counts. Never a pickle."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from prism.errors import InputError


def save(folder: Path, kind: str, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Any) -> Path:
    """Writes `folder/kind-serial-step` with one safetensors file for each of `tensors` and `facts` as JSON.

    Everything is written under another name and flushed to the disk before the folder gets its own; older ones of
    the kind go after that. So there is a newest, and it is complete, at every moment.
    """
    from safetensors.torch import save_file

    before = newest(folder, kind)
    serial = 1 if before is None else int(before.name.split("-")[1]) + 1
    target = folder / f"{kind}-{serial:06d}-step{step}"
    part = folder / f".{target.name}.{os.getpid()}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, values in tensors.items():
        save_file(
            {key: value.detach().cpu().contiguous() for key, value in values.items()}, part / f"{name}.safetensors"
        )
    (part / "facts.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    for file in part.iterdir():
        file.chmod(part.stat().st_mode & 0o666)  # safetensors lets only the owner read
    for file in [*part.iterdir(), part]:
        _flush(file)
    os.replace(part, target)
    _flush(folder)
    for old in folder.glob(f"{kind}-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    for dead in folder.glob(f".{kind}-*.part"):
        shutil.rmtree(dead, ignore_errors=True)
    return target


def newest(folder: Path, kind: str) -> Path | None:
    """The newest checkpoint of a kind."""
    return max(folder.glob(f"{kind}-*"), default=None)


def load_facts(checkpoint: Path) -> Any:
    """What `save` was given as facts."""
    return _read(checkpoint / "facts.json", lambda path: json.loads(path.read_text(encoding="utf-8")))


def load_tensors(checkpoint: Path, name: str) -> dict[str, Tensor]:
    """One of the files of tensors."""
    from safetensors.torch import load_file

    return _read(checkpoint / f"{name}.safetensors", load_file)


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Puts a checkpoint's weights into a model of the same shape."""
    try:
        model.load_state_dict(load_tensors(checkpoint, "model"))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{checkpoint} is not a checkpoint of this model: {reason}") from None


def _read(path: Path, reader: Any) -> Any:
    try:
        return reader(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: is {path.parent} a checkpoint?") from None
    except Exception as error:  # safetensors and json have errors of their own for a damaged file
        raise InputError(f"{path} cannot be read ({error}): it is damaged or of another kind") from None


def _flush(path: Path) -> None:
    """Waits until a file or folder is on the disk: a rename must not overtake what it renames."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
