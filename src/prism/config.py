"""Checks that configs share: each refuses one bad field in one line that names it, its value and the remedy."""

from ast import literal_eval
from dataclasses import fields
from numbers import Integral
from typing import Any, TypeVar, get_args

from prism.errors import InputError, suggest

C = TypeVar("C")


def at_least(name: str, value: float, least: float) -> None:
    """Refuses a number below `least` (and a boolean, which Python would take for one)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise InputError(f"{name} must be at least {least}, got {value!r}")


def count(name: str, value: object, least: int = 1) -> int:
    """A whole number of at least `least`, numpy's too; anything else is refused."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def several(name: str, values: object) -> None:
    """Refuses a text where several values are wanted: Python would take its letters for them."""
    if isinstance(values, str | bytes):
        raise InputError(f"{name} wants several values, got the text {values!r}: give {name}=[{values!r}]")


def fraction(name: str, value: float) -> None:
    """Refuses what is not in [0, 1)."""
    if not 0 <= value < 1:
        raise InputError(f"{name} must be in [0, 1), got {value!r}")


def option_value(text: str) -> Any:
    """What is typed after `name=`: a number, boolean or None as Python writes it, true and false too; else text."""
    try:
        return literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError):
        return text


def one_of(name: str, value: object, choices: object) -> None:
    """Refuses a value outside a `Literal` type or a tuple of names."""
    known = [str(c) for c in (choices if isinstance(choices, tuple) else get_args(choices))]
    if value not in known:
        hint = suggest(str(value), known)
        raise InputError(f"{name} must be one of {', '.join(known)}; got {value!r}, {hint}")


def from_fields(cls: type[C], values: Any, where: str) -> C:
    """`cls(**values)`, a misspelt field answered with the nearest right one."""
    if not isinstance(values, dict):
        raise InputError(f"{where} must be a JSON object, got {type(values).__name__}")
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise InputError(f"{where} has no field {name!r}: {suggest(name, known)}")
    return cls(**values)
