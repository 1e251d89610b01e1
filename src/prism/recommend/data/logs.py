"""From files or data frames of (user, item, time) to a `Log`: ids coded, events in order."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs

from prism.errors import InputError, suggest
from prism.recommend.data.clock import read_times
from prism.recommend.data.items import with_item_table
from prism.recommend.data.log import Codes, Ids, Ints, Log
from prism.recommend.data.sources import UNNAMED, collect, files_of, from_pandas, scan, without_header

GUESSES = {
    "user": "user userid uid customer customerid reviewerid visitor visitorid member memberid account"
    " accountid client clientid buyer buyerid person personid reviewer profile profileid device deviceid household"
    " householdid householdkey card cardid session sessionid",
    "item": "item itemid iid product productid parentasin asin movie movieid film filmid sku stockcode"
    " article articleid business businessid track trackid song songid artist artistid book bookid"
    " video videoid content contentid news newsid venue venueid poi poiid place placeid location locationid game gameid"
    " app appid recipe recipeid isbn page pageid url",
    "time": "timestamp time ts datetime date eventtime timems times unixreviewtime unixtime created createdat"
    " invoicedate orderdate purchasedate reviewtime tdat utctime localtime checkintime clicktime visittime visitedat"
    " boughtat purchasedat eventdate day",
}
# In the place of a column of times: there is none.
NO_TIME = "none"


def read_log(
    source: Any,
    *,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    items: Any = None,
    later: bool = False,
    drop_nulls: bool = False,
    time_format: str | None = None,
    item_name: str | None = None,
    usual: Mapping[str, str] | None = None,
) -> Log:
    """Reads events from CSV, TSV, Parquet or JSON (a file, folder, pattern, list; packed or not) or a data frame.

    Columns that are not named are guessed from common names. Every row is an event, repeated rows included;
    events of equal time keep the order of the source. Ids are numbers or text, as the source has them; in a text file
    7 is a number, and 007 or A7 is text. `items` is a table about the items, a file or a data frame (see
    `with_item_table`). With `later`, these are events that came after others: one will do. `drop_nulls` leaves out
    events without a user, item or time; `time_format` is the form of times in text, e.g. %d/%m/%Y %H:%M. `item_name` is
    the column of `items` that is shown. With time="none" there are no times: events are in the order of the source, and
    leave-one-out divides them. `usual` is a log's `columns`: those names are tried before common ones, and after a
    log without times come events without.
    """
    events, columns, where, typed = _read(source, {"user": user, "item": item, "time": time}, usual)
    options: dict[str, Any] = {"later": later, "drop_nulls": drop_nulls, "time_format": time_format}
    log = build_log(events, columns, where, typed=typed, **options)
    return log if items is None else with_item_table(log, items, item=item, name=item_name)


def _read(
    source: Any, wanted: dict[str, str | None], usual: Mapping[str, str] | None
) -> tuple[pl.DataFrame, dict[str, str], str, bool]:
    """(events, their columns in the source, its name, whether it has types)."""
    where = "the data frame"
    if isinstance(source, pl.DataFrame | pl.LazyFrame):
        lazy = source.lazy()
        columns = choose_columns(wanted, lazy.collect_schema().names(), where, usual)
        return collect(lazy.select(**by_role(columns)), where), columns, where, True
    if type(source).__module__.partition(".")[0] == "pandas":
        columns = choose_columns(wanted, [str(name) for name in source.columns], where, usual)
        frame = from_pandas(source, list(dict.fromkeys(columns.values())))
        return frame.select(**by_role(columns)), columns, where, True
    if not isinstance(source, str | Path | Iterable) or isinstance(source, Mapping):
        raise InputError(f"source must be a path, paths or a data frame, got {type(source).__name__}")
    return _read_files(files_of(source), wanted, usual)


def build_log(
    events: pl.DataFrame,
    columns: dict[str, str],
    where: str,
    *,
    name: str | None = None,
    typed: bool = False,
    later: bool = False,
    drop_nulls: bool = False,
    time_format: str | None = None,
) -> Log:
    """A `Log` from a frame with columns user, item, time; `columns` has their names in the source.

    Of a source without types (`typed`) an id is a number if it is written as one, and text otherwise.
    """
    places = {role: f"{role} column {column!r} of {where}" for role, column in ({"time": NO_TIME} | columns).items()}
    if not events.height:
        raise InputError(f"{where} has no events: give at least two users and two items")
    notes = []
    if drop_nulls:
        kept = events.with_columns(cs.float().fill_nan(None)).drop_nulls()
        notes.append(f"{events.height - kept.height:,} of {events.height:,} events dropped: no user, item or time")
        if not kept.height:
            raise InputError(f"{where}: every event lacks its user, item or time")
        events = kept
    seconds, order, note = read_times(events["time"], places["time"], time_format)
    if "time" not in columns:
        note = "without times: every event counts as at the same, in the order of the source"
    users, user_ids = _coded(events["user"], places["user"], typed)
    items, item_ids = _coded(events["item"], places["item"], typed)
    if not later:
        _check_size(users, user_ids, item_ids, columns, where)
    by = _sorted_by(users, order)
    tied = np.sum((np.diff(users[by]) == 0) & (np.diff(order[by]) == 0)) / len(users)
    return Log(
        offsets=np.concatenate([[0], np.cumsum(np.bincount(users, minlength=len(user_ids)))]),
        items=items[by],
        times=seconds[by],
        user_ids=user_ids,
        item_ids=item_ids,
        name=name or where,
        columns=columns,
        notes=(
            "columns: " + ", ".join(f"{role} = {column}" for role, column in columns.items()),
            *notes,
            note,
            *([f"events of one user at one time ({tied:.1%}) stay in the order of the source"] if tied else []),
        ),
    )


def _read_files(
    files: Sequence[Path], wanted: dict[str, str | None], usual: Mapping[str, str] | None
) -> tuple[pl.DataFrame, dict[str, str], str, bool]:
    where = str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    parts, typed = [], False
    for file in files:
        frame, has_types = scan(file)
        typed |= has_types
        columns = choose_columns(wanted, frame.collect_schema().names(), str(file), usual)
        parts.append(frame.select(**by_role(columns)))
    for role in ("user", "item", "time"):  # files may disagree on a type
        kinds = {part.collect_schema()[role] for part in parts}
        if len(kinds) > 1:
            number = role != "time" and are_numbers(kinds)
            parts = [_cast(part, role, number, str(file)) for part, file in zip(parts, files, strict=True)]
    return collect(pl.concat(parts), where), columns, where, typed


def _cast(frame: pl.LazyFrame, role: str, number: bool, where: str) -> pl.LazyFrame:
    """One column as whole numbers or text; floats among ids are whole numbers first, for 7 is not 7.0 as text."""
    if role != "time" and frame.collect_schema()[role].is_float():
        read = collect(frame, where)
        frame = read.with_columns(whole_numbers(read[role], f"{role} column of {where}").alias(role)).lazy()
    return frame.with_columns(pl.col(role).cast(pl.Int64 if number else pl.String))


def are_numbers(kinds: Iterable[Any]) -> bool:
    """Whether ids of these types are whole numbers: a gap may have made floats of them, or left nothing."""
    return all(kind.is_integer() or kind.is_float() or kind == pl.Null for kind in kinds)


def by_role(columns: dict[str, str]) -> dict[str, pl.Expr]:
    """The columns, named by what they are; where there are no times, every event has the same."""
    found = {role: pl.col(column) for role, column in columns.items()}
    return found if "time" in found else found | {"time": pl.lit(0, pl.Int64)}


def choose_columns(
    wanted: dict[str, str | None], names: list[str], where: str, usual: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The column of each role: the one named, the usual one, or the first common name."""
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    plain: dict[str, str] = {}
    for name in names:
        plain.setdefault("".join(c for c in name.partition(":")[0].lower() if c.isalnum()), name)
    bare = without_header(names)
    if bare and len(names) in UNNAMED:
        plain = dict(zip(UNNAMED[len(names)], names, strict=True))
    chosen, missing = {}, []
    for role, column in wanted.items():
        if role == "time" and _has_none(column, names, usual):
            continue
        if column is not None and column not in names:
            raise InputError(f"{role}={column!r} is not a column of {where} ({listed}); {suggest(column, names)}")
        column = column or next((name for name in [(usual or {}).get(role)] if name in names), None)
        found = column or next((plain[guess] for guess in GUESSES[role].split() if guess in plain), None)
        if found is None:
            missing.append(role)
        else:
            chosen[role] = found
    if missing:
        if bare:
            listed = f"no header line; its columns are 1 to {len(names)}"
        options = "with " + ", ".join(f"{role}=" for role in missing)
        if usual is not None:  # a command that reads later events has no options for it
            options = "as in the first log: " + ", ".join(usual.get(role, role) for role in missing)
        what = f"{', '.join(missing)} column{'s' * (len(missing) > 1)}"
        untimed = f" (time={NO_TIME}: events are in order)" if usual is None and "time" in missing else ""
        raise InputError(
            f"no {what} found in {where}: it has {listed}; name {'them' if missing[1:] else 'it'} {options}{untimed}"
        )
    if len(set(chosen.values())) < len(chosen):
        raise InputError(f"user, item and time must be three columns of {where}, got {chosen}")
    return chosen


def _has_none(time: str | None, names: list[str], usual: Mapping[str, str] | None) -> bool:
    """Whether there are no times: so it is said, or so the first log was read, whose columns are known."""
    if time is None:
        return usual is not None and "user" in usual and "time" not in usual
    return time == NO_TIME and time not in names


def _coded(column: pl.Series, where: str, typed: bool) -> tuple[Codes, Ids]:
    """(codes, ids), the ids in increasing order: numbers by value, then text by its characters."""
    try:
        return _coded_as_they_are(column, where, typed)
    except pl.exceptions.PolarsError:
        raise InputError(
            f"{where} has type {column.dtype}, from which no ids can be made: give whole numbers of 64 bits, or text"
        ) from None


def _coded_as_they_are(column: pl.Series, where: str, typed: bool) -> tuple[Codes, Ids]:
    if column.dtype.is_float():
        column = whole_numbers(column, where)
    if column.null_count():
        row = int(column.is_null().arg_max() or 0) + 1
        raise InputError(
            f"{where}: {column.null_count()} of {len(column)} ids are missing, first in event {row}; "
            "drop those rows with drop_nulls="
        )
    if column.dtype.is_integer():
        large = int(column.max()) >= 2**63  # type: ignore[arg-type]
        return _coded_numbers(column.cast(pl.UInt64 if large else pl.Int64).to_numpy())
    text = column if column.dtype == pl.String else column.cast(pl.String)
    ids = pl.DataFrame({"text": text.unique()}).with_columns(number=pl.lit(None, dtype=pl.Int64))
    if not typed:  # '7' is a number and '007' text, whatever else is in the column
        number = pl.col("text").cast(pl.Int64, strict=False)
        ids = ids.with_columns(number=pl.when(number.cast(pl.String) == pl.col("text")).then(number))
    ids = ids.sort("number", "text", nulls_last=True)
    codes = text.cast(pl.Enum(ids["text"])).to_physical().cast(pl.Int32).to_numpy()
    if not ids["number"].null_count():
        return codes, ids["number"].to_numpy()
    pairs = zip(ids["number"].to_list(), ids["text"].to_list(), strict=True)
    return codes, np.array([text if number is None else number for number, text in pairs], dtype=object)


def _coded_numbers(values: Ids) -> tuple[Codes, Ids]:
    low, high = int(values.min()), int(values.max())
    if high - low < 4 * len(values) + 1000:  # a table of the whole range is cheaper than a search
        present = np.zeros(high - low + 1, dtype=bool)
        present[values - low] = True
        table = np.cumsum(present, dtype=np.int32) - np.int32(1)
        return table[values - low], np.flatnonzero(present).astype(values.dtype) + values.dtype.type(low)
    ids = pl.Series(values).unique().sort().to_numpy()
    return np.searchsorted(ids, values).astype(np.int32), ids


def whole_numbers(column: pl.Series, where: str) -> pl.Series:
    """Whole numbers that a missing value, or another tool, turned into floats."""
    column = column.fill_nan(None)
    broken = column.drop_nulls().filter(column.drop_nulls() % 1 != 0)
    if len(broken):
        raise InputError(f"{where} holds {broken[0]}: an id is a whole number or text; is it the right column?")
    largest = float(column.abs().max() or 0)  # type: ignore[arg-type]
    if largest > 2**53:
        raise InputError(f"{where} holds {largest:.0f} as a float, which is not exact: give whole numbers or text")
    return column.cast(pl.Int64)


def _sorted_by(users: Codes, order: Ints) -> Ints:
    """The permutation that sorts by user, then time, and leaves ties as they were."""
    first = int(order.min())
    span = int(order.max()) - first + 1
    if span < 2**62:
        order = order - first
        coarse = next((step for step in (10**6, 10**3) if not (order % step).any()), 1)  # whole seconds, or thousandths
        order, span = order // coarse, (span - 1) // coarse + 1
    if (int(users.max()) + 1) * span < 2**62:  # one key sorts several times faster than two
        return np.argsort(users * np.int64(span) + order, kind="stable")
    return np.lexsort((order, users))


def _check_size(users: Codes, user_ids: Ids, item_ids: Ids, columns: dict[str, str], where: str) -> None:
    for role, ids in (("user", user_ids), ("item", item_ids)):
        if len(ids) < 2:
            found = f"{ids.tolist()[0]!r} (column {columns[role]!r}), in {len(users):,} events"
            raise InputError(
                f"{where} has a single {role}, {found}: recommendation needs at least 2; is {role}= the right column?"
            )
    if len(user_ids) == len(users):
        raise InputError(
            f"every user of {where} has one event (column {columns['user']!r}): "
            "there is no next event to learn; is user= the right column?"
        )
