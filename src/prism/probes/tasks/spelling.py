"""The spelling of probes in commands: `mqar`, or `mqar:pairs=8`, a task with some of its fields."""

from prism.config import from_fields, option_value
from prism.errors import InputError
from prism.probes.tasks.base import PROBES, Probe


def probe_kind(text: str) -> type[Probe]:
    """The class of the task that `text` spells."""
    return PROBES[text.partition(":")[0]]


def spelled_probe(text: str, length: int | None = None) -> Probe:
    """The task that `text` spells, at `length` tokens unless it gives a length itself."""
    name, colon, rest = text.partition(":")
    values = {} if length is None else {"length": length}
    for part in rest.split(",") if colon else ():
        field, sign, value = part.partition("=")
        if not (sign and field.strip()):
            raise InputError(f"probe {text!r}: {part!r} is not field=value")
        values[field.strip()] = option_value(value.strip())
    return from_fields(PROBES[name], values, f"probe {name}")
