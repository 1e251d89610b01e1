"""Checks that configs share: each refuses one bad field in one line that names it, its value and the remedy."""

from ast import literal_eval
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from prism.errors import InputError, suggest

C = TypeVar("C")


class Limit(NamedTuple):
    """What a number has to be, as a part of a field's type."""

    says: str
    holds: Callable[[Any], bool]

    def check(self, name: str, value: object) -> None:
        """Refuses any other value."""
        of_kind(name, value, float)
        if not self.holds(value):
            raise InputError(f"{name} must be {self.says}, got {value!r}")


def of_kind(name: str, value: object, kind: type) -> None:
    """Refuses what is not of a kind: a boolean, a whole number or a number, none of which is a boolean."""
    is_bool = isinstance(value, bool)
    if kind is bool and not is_bool:
        raise InputError(f"{name} must be true or false, got {value!r}")
    if kind is int and (is_bool or not isinstance(value, Integral)):
        raise InputError(f"{name} must be a whole number, got {value!r}")
    if kind is float and (is_bool or not isinstance(value, Real)):
        raise InputError(f"{name} must be a number, got {value!r}")


def least(n: int) -> Limit:
    """At least n."""
    return Limit(f"at least {n}", lambda x: x >= n)


def most(n: int, what: str) -> Limit:
    """At most n, as many as there are of something."""
    return Limit(f"at most {n} ({what})", lambda x: x <= n)


# Torch takes 64 bits, and processes add their number to it.
SEED = Limit("in [0, 2**63)", lambda x: 0 <= x < 2**63)

Count = Annotated[int, least(1)]
Natural = Annotated[int, least(0)]
Seed = Annotated[int, SEED]
FromOne = Annotated[float, least(1)]
NotNegative = Annotated[float, least(0)]
Positive = Annotated[float, Limit("above 0", lambda x: x > 0)]
Share = Annotated[float, Limit("in [0, 1]", lambda x: 0 <= x <= 1)]
Fraction = Annotated[float, Limit("in [0, 1)", lambda x: 0 <= x < 1)]


class Checked:
    """A dataclass that refuses what the types of its fields do not take: `steps: Count = 2` is at least 1."""

    def __post_init__(self) -> None:
        own: Any = type(self)
        for name, kind, optional in _kinds(own):
            value = getattr(self, name)
            if value is None and optional:
                continue
            if get_origin(kind) is Literal:
                one_of(name, value, kind)
                continue
            of_kind(name, value, getattr(kind, "__origin__", kind))
            for limit in getattr(kind, "__metadata__", ()):
                if isinstance(limit, Limit):
                    limit.check(name, value)


@cache
def _kinds(cls: Any) -> list[tuple[str, Any, bool]]:
    """Of each field its name, its type, and whether it takes None; not those that take one of several types."""
    found = []
    for field in fields(cls):
        kinds = get_args(field.type) if get_origin(field.type) in (Union, UnionType) else (field.type,)
        given = [kind for kind in kinds if kind is not NoneType]
        if len(given) == 1:
            found.append((field.name, given[0], len(kinds) > 1))
    return found


def at_least(name: str, value: float, lowest: int) -> None:
    """Refuses a number below `lowest`."""
    least(lowest).check(name, value)


def positive(**values: int | Sequence[int]) -> None:
    """Refuses numbers below 1 by their names, and lists of them that are empty or hold one."""
    for name, value in values.items():
        at_least(name, min(value, default=0) if isinstance(value, Sequence) else value, 1)


def some(**values: Sequence[Any]) -> None:
    """Refuses lists without anything in them, by their names."""
    for name, value in values.items():
        if not value:
            raise InputError(f"{name} is empty: name at least one")


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
