"""Is this the same run? Settings are compared field by field, without those that change no result."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prism.errors import InputError
from prism.files import write_whole

# When a run saves and what it writes down beside its result.
HARMLESS = ("save_seconds", "log_steps", "tensorboard")


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """`field is theirs there and ours here` for each field of ours that is not the same there, nested ones too."""
    here, there = _flat(_as_json(ours)), _flat(_as_json(theirs))
    return [
        f"{path[-1]} is {there.get(path)!r} there and {value!r} here"
        for path, value in here.items()
        if path[-1] not in HARMLESS and (path not in there or there[path] != value)
    ]


def refuse_others(where: Path, ours: Mapping[str, Any], theirs: Mapping[str, Any], remedy: str) -> None:
    """Refuses settings that are not those of the run at `where`."""
    found = differences(ours, theirs)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InputError(f"{where} holds another run: {found[0]}{more}; {remedy}")


def read_settings(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object that a file holds."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is not a JSON object but {type(found).__name__}: {remedy}")
    return found


def check_settings(out: Path, settings: Mapping[str, Any]) -> None:
    """Refuses a folder whose `config.json` says that it holds a run with other settings."""
    path, remedy = out / "config.json", "choose another --out"
    if path.exists():
        refuse_others(out, settings, read_settings(path, remedy), remedy)


def keep_settings(out: Path, settings: Mapping[str, Any]) -> None:
    """Writes `out/config.json`; a folder that holds a run with other settings is refused."""
    check_settings(out, settings)
    if not (out / "config.json").exists():
        write_whole(out / "config.json", json.dumps(_as_json(settings), indent=1).encode())


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """As a file gives them back: a tuple is a list."""
    return dict(json.loads(json.dumps(values)))


def _flat(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for name, value in values.items():
        flat |= _flat(value, (*above, name)) if isinstance(value, dict) else {(*above, name): value}
    return flat
