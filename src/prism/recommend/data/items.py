"""What is known of items beside who took them: a table of names and features, and the values that items share."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.errors import InputError, suggest
from prism.recommend.data.log import Ints, Log
from prism.recommend.data.sources import collect, files_of, from_pandas, scan

# Columns that hold what to show for an item, in this order; as they are written without spaces, in small letters.
TITLES = "name title itemname productname itemtitle producttitle description itemdescription productdescription label"
WORDS = "words"


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemValues:
    """Item i has the values `values[offsets[i]:offsets[i + 1]]`, in each column weights that add up to 1."""

    names: tuple[str, ...]
    """`column=value`, by code."""
    values: Ints
    weights: NDArray[np.float32]
    offsets: Ints

    def same(self, other: "ItemValues") -> bool:
        """Whether both say the same of the same items."""
        pairs = ((self.values, other.values), (self.offsets, other.offsets))
        return self.names == other.names and all(np.array_equal(a, b) for a, b in pairs)


def with_items(log: Log, ids: Sequence[object], /, **columns: Sequence[Any]) -> Log:
    """The log with a table about its items: column `name` becomes `item_names`, the rest `item_features`."""
    rows = {str(id_): row for row, id_ in enumerate(ids)}
    order = [rows.get(str(id_)) for id_ in log.item_ids.tolist()]
    picked = {name: [None if row is None else values[row] for row in order] for name, values in columns.items()}
    names = picked.pop("name", None)
    return replace(
        log,
        item_names=None if names is None else np.array(names, dtype=object),
        item_features=pl.DataFrame(picked) if picked else None,
    )


def with_item_table(log: Log, source: Any, *, item: str | None = None, name: str | None = None) -> Log:
    """The log with a file or data frame about its items, one row each.

    The ids are in the column `item`, or if there is none of that name in the first. What to show is in the column
    `name`, or in one that is called name, title, description or the like.
    """
    frame, where = item_table(source)
    ids, id_column = ids_of(frame, item)
    known = len(set(ids) & {str(id_) for id_ in log.item_ids.tolist()})
    if not known:
        raise InputError(
            f"{where}: no id of column {id_column!r} is an item of {log.name}, e.g. {log.item_ids.tolist()[0]!r}"
        )
    refuse_repeated(ids, id_column, where)
    title = _title(frame, where, id_column, name)
    columns = {column: frame[column].to_list() for column in frame.columns if column != id_column}
    note = f"items: {known:,} of {log.n_items:,} are in {where}, by column {id_column}"
    if title is None:
        note += "; none of its columns seems to have their names: item_name (--item-name) says which has"
    else:
        columns["name"] = [None if cell is None or not str(cell).strip() else str(cell) for cell in frame[title]]
        note += f"; shown by column {title}"
    named = {} if title is None else {"name": title}
    made = with_items(log, ids, **columns)
    return replace(made, notes=(*log.notes, note), columns={**log.columns, **named})


def _title(frame: pl.DataFrame, where: str, id_column: str, name: str | None) -> str | None:
    """The column that is shown: the one named, or the first of `TITLES`."""
    others = [column for column in frame.columns if column != id_column]
    if name is not None and name not in others:
        raise InputError(f"item_name={name!r} is not a column of {where} beside {id_column!r}; {suggest(name, others)}")
    plain = {"".join(c for c in column.lower() if c.isalnum()): column for column in reversed(others)}
    return name or next((plain[guess] for guess in TITLES.split() if guess in plain), None)


def ids_of(frame: pl.DataFrame, item: str | None) -> tuple[list[str], str]:
    """The ids of a table about items, as text, and the column that they are in: `item`, "item", or the first."""
    column = next((name for name in (item, "item") if name in frame.columns), frame.columns[0])
    return frame[column].cast(pl.String).to_list(), column


def refuse_repeated(ids: list[str], column: str, where: str) -> None:
    """Refuses a table with several rows for one item."""
    twice = [id_ for id_, count in Counter(ids).items() if count > 1]
    if twice:
        raise InputError(f"{where}: item {twice[0]!r} of column {column!r} has several rows; give it one")


def check_features(features: Sequence[str]) -> None:
    """Refuses what is neither `column` nor `column:words`."""
    for feature in features:
        column, sign, kind = feature.partition(":")
        if not column or (sign and kind != WORDS):
            raise InputError(f"features takes column or column:{WORDS}, got {feature!r}")


def item_values(log: Log, features: Sequence[str]) -> ItemValues:
    """The values of the items of a log, those that a single item has left out: they tell it from no other.

    `column` holds categories, several of them with | between; `column:words` is text, its words are the values.
    """
    codes: dict[str, int] = {}
    found: list[list[tuple[int, float]]] = [[] for _ in range(log.n_items)]
    for feature in features:
        column, _, kind = feature.partition(":")
        split = [cell_values(text, kind == WORDS) for text in item_column(log, column)]
        often = Counter(value for values in split for value in values)
        for item, values in zip(found, split, strict=True):
            shared = [value for value in values if often[value] > 1]
            for value in shared:
                code = codes.setdefault(f"{feature}={value}", len(codes))
                item.append((code, 1 / len(shared)))
    if not codes:
        raise InputError(f"no two items share a value of {', '.join(features)}: choose other features, or none")
    pairs = [pair for item in found for pair in item]
    return ItemValues(
        names=tuple(codes),
        values=np.array([code for code, _ in pairs], dtype=np.int64),
        weights=np.array([weight for _, weight in pairs], dtype=np.float32),
        offsets=np.cumsum([0, *map(len, found)]),
    )


def items_with(log: Log, wanted: Mapping[str, object]) -> NDArray[np.bool_]:
    """[items]: whether an item has, in every column named, one of the values wanted there (a cell a|b has both)."""
    mask = np.ones(log.n_items, dtype=bool)
    for column, values in wanted.items():
        accepted = {str(value) for value in (values if isinstance(values, list | tuple | set) else [values])}
        cells = item_column(log, column)
        held = ([] if cell is None else [str(cell), *cell_values(cell, False)] for cell in cells)
        mask &= np.array([not accepted.isdisjoint(values) for values in held], dtype=bool)
    return mask


def item_column(log: Log, name: str) -> list[Any]:
    """One cell per item, of the items' table or of their names; another column is refused."""
    known: dict[str, list[Any]] = {} if log.item_names is None else {"name": log.item_names.tolist()}
    if log.item_features is not None:
        known |= {column: log.item_features[column].to_list() for column in log.item_features.columns}
    if name not in known:
        hint = suggest(name, known) if known else "it knows only their ids; give a table of items"
        raise InputError(f"{log.name} has no column {name!r} of items: {hint}")
    return known[name]


def cell_values(value: Any, words: bool) -> list[str]:
    """The distinct values of one cell, in order: what stands between |, or its words."""
    if value is None:
        return []
    parts = re.findall(r"\w+", str(value).lower()) if words else [part.strip() for part in str(value).split("|")]
    return list(dict.fromkeys(filter(None, parts)))


def item_table(source: Any) -> tuple[pl.DataFrame, str]:
    """A file or data frame about items, and what to call it in a message."""
    frame, where = _table_of(source)
    if not frame.width:
        raise InputError(f"{where} has no columns: give one row per item, with its id in the first")
    return frame, where


def _table_of(source: Any) -> tuple[pl.DataFrame, str]:
    if isinstance(source, pl.DataFrame):
        return source, "the table of items"
    if type(source).__module__.partition(".")[0] == "pandas":
        return from_pandas(source, list(source.columns)), "the table of items"
    if not isinstance(source, str | Path):
        raise InputError(f"items must be a file or a data frame, got {type(source).__name__}")
    return collect(pl.concat([scan(file).frame for file in files_of(source)]), str(source)), str(source)
