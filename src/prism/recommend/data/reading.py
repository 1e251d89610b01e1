"""How a log is read, as the options of every command that reads one."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What stands where in a file of one's own."""

    user: str | None = None
    """Column of users; default: guessed from its name."""
    item: str | None = None
    """Column of items."""
    time: str | None = None
    """Column of times; none: there are no times, and events are in the order of the file."""
    drop_nulls: bool = False
    """Leave out events without a user, item or time."""
    time_format: str | None = None
    """Form of times in text, e.g. "%d/%m/%Y %H:%M"; default: found by trying."""


@dataclass(frozen=True, kw_only=True)
class Reading(Columns):
    """Of a file of one's own the columns; of a known data set where it lies."""

    folder: Path | None = None
    """Where a known data set's files are; default: $PRISM_DATA or ~/.cache/prism."""
    items: Path | None = None
    """A table about the items, for `--features` and names: one row per item, its id in the column named as in the log
    or in the first."""
    item_name: str | None = None
    """Column of that table to show beside an item's id; default: guessed (name, title, description, …)."""


COLUMNS, READING = Columns(), Reading()
