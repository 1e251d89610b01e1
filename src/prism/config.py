"""Checks that configs share: each refuses one bad field in one line that names it, its value and the remedy."""

from typing import get_args

from prism.errors import InputError, suggest


def at_least(name: str, value: float, least: float) -> None:
    """Refuses a number below `least` (and a boolean, which Python would take for one)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise InputError(f"{name} must be at least {least}, got {value!r}")


def fraction(name: str, value: float) -> None:
    """Refuses what is not in [0, 1)."""
    if not 0 <= value < 1:
        raise InputError(f"{name} must be in [0, 1), got {value!r}")


def one_of(name: str, value: object, choices: object) -> None:
    """Refuses a value outside a `Literal` type or a tuple of names."""
    known = [str(c) for c in (choices if isinstance(choices, tuple) else get_args(choices))]
    if value not in known:
        hint = suggest(str(value), known)
        raise InputError(f"{name} must be one of {', '.join(known)}; got {value!r}, {hint}")
