"""A column of times, in whatever form, as seconds since 1970 and a finer integer that keeps the order."""

import numpy as np
import polars as pl

from prism.errors import InputError
from prism.recommend.data.log import Ints

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
UNITS = ((1e11, 1, "seconds"), (1e14, 10**3, "milliseconds"), (1e17, 10**6, "microseconds"))
REMEDY = "give numbers (seconds, ms, µs), dates or ISO 8601 such as 2024-01-31 13:45:00"


def read_times(column: pl.Series, where: str) -> tuple[Ints, Ints, str]:
    """(seconds, order, note): the note states the form that was found; `where` names the column in errors."""
    kind = column.dtype
    if column.null_count():
        raise InputError(f"{where}, event {_first(column.is_null())}: no time; drop such rows or {REMEDY}")
    if kind == pl.String:
        return _from_text(column, where)
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
    size = float(np.median(np.abs(values)))
    scale, unit = next(((s, u) for limit, s, u in UNITS if size < limit), (10**9, "nanoseconds"))
    note = f"time read as {unit} since 1970"
    if column.dtype.is_integer():
        order = values.astype(np.int64)
        return order // scale, order, note
    if np.abs(values).max() / scale > 9e12:
        raise InputError(f"{where}: {float(np.abs(values).max())} is out of range for a time; {REMEDY}")
    return (
        np.floor(values / scale).astype(np.int64),
        np.round(values * (10**6 / scale)).astype(np.int64),
        note,
    )


def _from_text(column: pl.Series, where: str) -> tuple[Ints, Ints, str]:
    column = column.str.strip_chars()
    for number in (pl.Int64, pl.Float64):
        numbers = column.cast(number, strict=False)
        if not numbers.null_count():
            return _from_numbers(numbers, where)
    sample = column.head(1000)
    missed = [_parse(sample, form).null_count() for form in FORMATS]
    best = int(np.argmin(missed))
    parsed = _parse(column, FORMATS[best])
    if parsed.null_count():
        wrong = parsed.is_null()
        raise InputError(f"{where}, event {_first(wrong)}: {column.filter(wrong)[0]!r} is not a time; {REMEDY}")
    return _from_datetime(parsed, f"text of the form {FORMATS[best]}")


def _parse(column: pl.Series, form: str) -> pl.Series:
    return column.str.to_datetime(form, strict=False, time_unit="us")


def _first(mask: pl.Series) -> int:
    """The first true row, counted from 1."""
    return int(mask.arg_max() or 0) + 1
