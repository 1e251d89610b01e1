"""Two logs as one: events that came later join those that a model was made from, and known codes stay as they are."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.recommend.data.items import ids_of, item_table, refuse_repeated, with_item_table
from prism.recommend.data.log import Codes, Ids, Ints, Log, numbers_among, without_events
from prism.recommend.data.splits import Mask


@dataclass(frozen=True, kw_only=True, eq=False)
class Merged:
    """A log with later events in it, and which those are."""

    log: Log
    """Users and items of the first log keep their codes; new ones come after them."""
    new: Mask
    """[events of `log`]: whether an event came with the second."""
    known: int
    """Events of the second log that the first has already, with user, item and time: they are not taken twice."""


def merge(log: Log, later: Log) -> Merged:
    """Both logs' events, each user's in order of time; of equal times the first log's come first.

    Where neither log has times every later event is new: nothing tells a repeated one from a known one.
    """
    users, user_ids = _codes(log.user_ids, later.user_ids, log.known_users(later.user_ids.tolist()))
    items, item_ids = _codes(log.item_ids, later.item_ids, log.item_codes(later.item_ids.tolist()))
    events = pl.DataFrame(
        {
            "user": np.concatenate([log.users, users[later.users]]).astype(np.int64),
            "item": np.concatenate([log.items, items[later.items]]).astype(np.int32),
            "time": np.concatenate([log.times, later.times]).astype(np.int64),
            "new": np.repeat([False, True], [log.n_events, later.n_events]),
        }
    )
    kept = _distinct(events) if log.times.any() or later.times.any() else events
    kept = kept.sort("user", "time", maintain_order=True)
    counts = np.bincount(kept["user"].to_numpy(), minlength=len(user_ids))
    merged = Log(
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        items=kept["item"].to_numpy(),
        times=kept["time"].to_numpy(),
        user_ids=user_ids,
        item_ids=item_ids,
        item_names=_names(log, later, items, len(item_ids)),
        item_features=_features(log, later, items, len(item_ids)),
        name=log.name,
        notes=later.notes,
        columns={**later.columns, **log.columns},
    )
    return Merged(log=merged, new=kept["new"].to_numpy(), known=events.height - kept.height)


def _distinct(events: pl.DataFrame) -> pl.DataFrame:
    """Without later events that the first log has: the n-th of one user, item and time is the same event in both."""
    nth = pl.int_range(pl.len()).over("user", "item", "time", "new").alias("nth")
    return events.with_columns(nth).unique(["user", "item", "time", "nth"], keep="first", maintain_order=True)


def items_alone(source: Any, *, item: str | None = None, usual: Mapping[str, str] | None = None) -> Log:
    """A table about items as a log without events: merged with another log, it adds the items that only it knows.

    `usual` is the other log's `columns`.
    """
    frame, where = item_table(source)
    ids, column = ids_of(frame, item or (usual or {}).get("item"))
    name = next((name for name in [(usual or {}).get("name")] if name in frame.columns), None)
    refuse_repeated(ids, column, where)
    typed = frame[column].to_numpy() if frame[column].dtype.is_integer() else np.array(ids, dtype=object)
    return with_item_table(without_events(typed, where), frame, item=column, name=name)


def _codes(ids: Ids, more: Ids, found: Codes) -> tuple[Ints, Ids]:
    """The code of each of `more`, and all ids: those that are not found come after the others, in their order."""
    new = found < 0
    codes = np.where(new, len(ids) + np.cumsum(new) - 1, found).astype(np.int64)
    added = more[new]
    if not len(ids):
        return codes, added
    if added.dtype == object and (ids.dtype != object or numbers_among(ids).any()):
        added = _numbers(added)  # a table may have them as text, and an id has one form
    if len(added) and added.dtype != ids.dtype:  # numbers beside text, as one file may have them
        return codes, np.array([*ids.tolist(), *added.tolist()], dtype=object)
    return codes, np.concatenate([ids, added]) if len(added) else ids


def _numbers(ids: Ids) -> Ids:
    """Text that is written as a whole number becomes one."""
    number = re.compile(r"0|-?[1-9]\d{0,17}")
    values = [int(id_) if isinstance(id_, str) and number.fullmatch(id_) else id_ for id_ in ids.tolist()]
    whole = all(isinstance(value, int) for value in values)
    return np.array(values, dtype=np.int64 if whole else object)


def _names(log: Log, later: Log, codes: Ints, count: int) -> NDArray[Any] | None:
    if log.item_names is None and later.item_names is None:
        return None
    names = np.full(count, None, dtype=object)
    if log.item_names is not None:
        names[: log.n_items] = log.item_names
    if later.item_names is not None:  # what it says of an item that the first knows replaces that, as features do
        named = later.item_names != None  # noqa: E711
        names[codes[named]] = later.item_names[named]
    return names


def _features(log: Log, later: Log, codes: Ints, count: int) -> pl.DataFrame | None:
    """One row per item; what the later table says of an item that the first knows replaces it."""
    if log.item_features is None and later.item_features is None:
        return None
    parts = [(log.item_features, np.arange(log.n_items)), (later.item_features, codes)]
    rows = pl.DataFrame({"__row": np.arange(count)})
    for frame, at in parts:
        if frame is None:
            continue
        placed = frame.with_columns(pl.Series("__row", at, dtype=pl.Int64))
        shared = [name for name in frame.columns if name in rows.columns]
        rows = rows.join(placed, on="__row", how="left", suffix="__new", maintain_order="left")
        rows = rows.with_columns(pl.coalesce(pl.col(f"{name}__new"), pl.col(name)).alias(name) for name in shared).drop(
            [f"{name}__new" for name in shared]
        )
    return rows.drop("__row")
