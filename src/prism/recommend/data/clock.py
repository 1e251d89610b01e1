"""A column of times, in whatever form, as seconds since 1970 and a finer integer that keeps the order."""

import datetime as dt
import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from prism.errors import InputError
from prism.recommend.data.log import Ints

# One time as a program gives it: seconds since 1970, or a datetime (in UTC, where it names no zone).
Moment = int | float | dt.datetime | dt.date | np.generic

# The first that reads most of a sample is used for all: month before day, and the note says so.
FORMATS = (
    "%Y-%m-%d",
    *(f"%Y-%m-%d{sep}%H:%M" for sep in "T "),
    *(f"%Y-%m-%d{sep}%H:%M:%S%.f{zone}" for sep in "T " for zone in ("", "%#z", " %#z", " UTC")),
    *(f"%Y/%m/%d{rest}" for rest in ("", " %H:%M", " %H:%M:%S%.f")),
    *(
        f"{day}{rest}"
        for day in ("%m/%d/%y", "%m/%d/%Y", "%d/%m/%y", "%d/%m/%Y", "%d.%m.%y", "%d.%m.%Y", "%d-%m-%Y")
        for rest in ("", " %H:%M", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p")
    ),
    "%m %d, %Y",
    *(f"{day}{rest}" for day in ("%b %d, %Y", "%B %d, %Y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y")
      for rest in ("", " %H:%M", " %H:%M:%S")),
    "%a, %d %b %Y %H:%M:%S %z",
    "%a %b %d %H:%M:%S %z %Y",
    "%a %b %d %H:%M:%S %Y",
)  # fmt: skip
# Sizes below which a number is a time in each unit.
UNITS = (
    (1e11, 1, "seconds"),
    (1e14, 10**3, "milliseconds"),
    (1e17, 10**6, "microseconds"),
    (np.inf, 10**9, "nanoseconds"),
)
REMEDY = "give numbers (seconds, ms, µs), dates or ISO 8601 such as 2024-01-31 13:45:00"


def seconds(moment: Moment) -> int:
    """One time in seconds since 1970; what must be milliseconds is refused, not guessed."""
    if isinstance(moment, np.generic):
        moment = moment.astype("datetime64[us]").item() if isinstance(moment, np.datetime64) else moment.item()
    if isinstance(moment, dt.date) and not isinstance(moment, dt.datetime):
        moment = dt.datetime(moment.year, moment.month, moment.day)
    if isinstance(moment, dt.datetime) and moment == moment:  # pandas' NaT is a datetime, and not itself
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()
    infinite = isinstance(moment, float) and not math.isfinite(moment)
    if isinstance(moment, bool) or not isinstance(moment, int | float) or infinite:
        raise InputError(f"time {moment!r} is not a time: give seconds since 1970, or a datetime")
    if abs(moment) >= UNITS[0][0]:
        raise InputError(f"time {moment!r} is not in seconds since 1970, as it should be: divide milliseconds by 1000")
    return int(moment // 1)


def seconds_of(moments: Sequence[Moment] | Ints) -> Ints:
    """Times of a history, oldest first."""
    times = np.array([seconds(moment) for moment in moments], dtype=np.int64)
    back = np.flatnonzero(np.diff(times) < 0)
    if len(back):
        raise InputError(f"times go back after event {back[0] + 1} of the history: give it oldest first")
    return times


def read_times(column: pl.Series, where: str, form: str | None = None) -> tuple[Ints, Ints, str]:
    """(seconds, order, note): the note states the form that was found or given; `where` names the column in errors.

    Orders of several columns compare where their notes are the same.
    """
    kind = column.dtype
    if column.null_count():
        raise InputError(
            f"{where}, event {_first(column.is_null())}: no time; drop such rows with drop_nulls=, or {REMEDY}"
        )
    if kind == pl.String:
        return _from_text(column, where, form)
    if form is not None:
        raise InputError(f"{where} has type {kind}, not text: time_format={form!r} is for text; leave it out")
    if kind == pl.Date or isinstance(kind, pl.Datetime):
        return _from_datetime(column, "dates" if kind == pl.Date else "dates and times")
    if kind.is_integer() or kind.is_float() or kind.is_decimal():
        return _from_numbers(column, where)
    raise InputError(f"{where} has type {kind}, not a time: {REMEDY}")


def _from_datetime(column: pl.Series, note: str) -> tuple[Ints, Ints, str]:
    order = column.cast(pl.Datetime("us")).to_physical().to_numpy()
    return order // 10**6, order, f"time read as {note}"


def _from_numbers(column: pl.Series, where: str) -> tuple[Ints, Ints, str]:
    if not column.dtype.is_integer():
        column = column.cast(pl.Float64)
        bad = ~column.is_finite()
        if bad.any():
            raise InputError(f"{where}, event {_first(bad)}: {column.filter(bad)[0]} is not a time; {REMEDY}")
    elif int(column.min()) >= 19000101 and int(column.max()) <= 21001231:  # type: ignore[arg-type]
        days = column.cast(pl.String).str.to_datetime("%Y%m%d", strict=False, time_unit="us")
        if not days.null_count():
            return _from_datetime(days, "numbers of the form YYYYMMDD")
    values = column.to_numpy()
    sizes = np.abs(values.astype(np.float64))
    n = int(np.searchsorted([limit for limit, _, _ in UNITS], np.median(sizes), side="right"))
    low, (high, scale, unit) = UNITS[n - 1][0] if n else 0.0, UNITS[n]
    other = (sizes >= high) | ((sizes >= 1e8) & (sizes < low))  # the same years, in another unit
    if other.any():
        first = int(np.argmax(other))
        many = f"{int(other.sum()):,} of {len(values):,} times are in another unit than the {unit} of most"
        raise InputError(f"{where}: {many}, first in event {first + 1}, {values[first]}; bring them to one unit")
    note = f"time read as {unit} since 1970"
    ticks = max(scale, 10**6)  # of the order, in a second: one number for 2000 and for 2000.0, which files may mix
    if sizes.max() * (ticks // scale) >= 2**63:
        raise InputError(f"{where}: {values[np.argmax(sizes)]} is out of range for a time; {REMEDY}")
    if column.dtype.is_integer():
        whole = values.astype(np.int64)
        return whole // scale, whole * (ticks // scale), note
    return np.floor(values / scale).astype(np.int64), np.round(values * (ticks / scale)).astype(np.int64), note


def _from_text(column: pl.Series, where: str, form: str | None) -> tuple[Ints, Ints, str]:
    column, remedy = column.str.strip_chars(), REMEDY
    if form is None:
        for number in (pl.Int64, pl.Float64):
            numbers = column.cast(number, strict=False)
            if not numbers.null_count():
                return _from_numbers(numbers, where)
        sample = column.head(1000)
        form = min(FORMATS, key=lambda one: _parse(sample, one).null_count())
    else:
        remedy = f"it is not of the form time_format={form!r}"
    parsed = _parse(column, form)
    if parsed.null_count():
        wrong = parsed.is_null()
        raise InputError(f"{where}, event {_first(wrong)}: {column.filter(wrong)[0]!r} is not a time; {remedy}")
    return _from_datetime(parsed, f"text of the form {form}")


def _parse(column: pl.Series, form: str) -> pl.Series:
    try:
        return column.str.to_datetime(form, strict=False, time_unit="us")
    except pl.exceptions.ComputeError:  # without hours, a form given by the user needs a day's reader
        return column.str.to_date(form, strict=False).cast(pl.Datetime("us"))


def _first(mask: pl.Series) -> int:
    """The first true row, counted from 1."""
    return int(mask.arg_max() or 0) + 1
