"""A recommender's folder: config.json, the log's three tables, and weights in best-*/model.safetensors."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from prism.errors import InputError
from prism.files import write_whole
from prism.recommend.config import FitConfig
from prism.recommend.data.log import Ids, Ints, Log

CONFIG, ITEMS, FEATURES, EVENTS = "config.json", "items.parquet", "features.parquet", "events.parquet"


def write_log(folder: Path, log: Log) -> None:
    """Items in the order of their codes, and events by user; each file appears whole."""
    write_items(folder, log)
    events = pl.DataFrame({"user": _series(log.user_ids[log.users]), "code": log.items, "time": log.times})
    _write(folder / EVENTS, events)


def write_items(folder: Path, log: Log) -> None:
    """Items in the order of their codes, and what is known of them."""
    names = [None] * log.n_items if log.item_names is None else log.item_names.tolist()
    _write(folder / ITEMS, pl.DataFrame({"item": _series(log.item_ids), "name": pl.Series(names, dtype=pl.String)}))
    if log.item_features is not None:
        _write(folder / FEATURES, log.item_features)


def _write(path: Path, frame: pl.DataFrame) -> None:
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    write_whole(path, buffer.getvalue())


def read_stored_log(folder: Path, name: str) -> Log:
    """The inverse of `write_log`, codes included; users without events are gone."""
    log, events = read_items(folder, name), _frame(folder / EVENTS, {"user", "code", "time"})
    user = _ids(events["user"])
    first = np.flatnonzero(np.append(True, user[1:] != user[:-1])) if len(user) else np.zeros(0, dtype=np.int64)
    return replace(
        log,
        offsets=np.append(first, len(user)),
        items=events["code"].to_numpy().astype(np.int32),
        times=events["time"].to_numpy().astype(np.int64),
        user_ids=user[first],
    )


def read_items(folder: Path, name: str) -> Log:
    """The inverse of `write_items`: a log of nobody's events."""
    items = _frame(folder / ITEMS, {"item", "name"})
    names = items["name"]
    features = _frame(folder / FEATURES) if (folder / FEATURES).exists() else None
    return Log(
        offsets=np.zeros(1, dtype=np.int64),
        items=np.zeros(0, dtype=np.int32),
        times=np.zeros(0, dtype=np.int64),
        user_ids=np.zeros(0, dtype=object),
        item_ids=_ids(items["item"]),
        item_names=None if names.null_count() == len(names) else np.array(names.to_list(), dtype=object),
        item_features=features,
        name=name,
    )


def write_config(folder: Path, config: FitConfig) -> None:
    """The resolved config."""
    write_whole(folder / CONFIG, config.to_json().encode())


def read_config(folder: Path) -> FitConfig:
    """The config of a run; a folder that is none gets a clear line."""
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(f"{folder} is not a run: it has no {CONFIG}; `prism fit DATA --out {folder}` makes one")
    try:
        return FitConfig.from_json(path.read_text(encoding="utf-8"))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    """A Parquet file that appears whole."""
    try:
        _write(path, frame)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def same_events(a: Log, b: Log) -> bool:
    """Whether two logs hold the same events of the same users and items, in the same codes."""
    pairs = ((a.offsets, b.offsets), (a.items, b.items), (a.times, b.times))
    ids = ((a.user_ids, b.user_ids), (a.item_ids, b.item_ids))
    return all(np.array_equal(x, y) for x, y in (*pairs, *ids))


def ranking_frame(log: Log, users: Ints, scores: np.ndarray, codes: Ints) -> pl.DataFrame:
    """One row a recommendation: user, rank, item, score and, where items have one, name."""
    row, column = np.nonzero(scores > -np.inf)
    items = codes[row, column]
    frame = pl.DataFrame(
        {
            "user": _series(log.user_ids[users[row]]),
            "rank": (column + 1).astype(np.int32),
            "item": _series(log.item_ids[items]),
            "score": scores[row, column],
        }
    )
    return frame if log.item_names is None else frame.with_columns(name=_series(log.item_names[items]))


def _frame(path: Path, columns: set[str] | None = None) -> pl.DataFrame:
    try:
        frame = pl.read_parquet(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: the run was not saved with its events") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    if columns is not None and set(frame.columns) != columns:
        raise InputError(f"{path} has columns {frame.columns}, expected {sorted(columns)}")
    return frame


def _series(ids: Ids) -> pl.Series:
    return pl.Series(ids.tolist() if ids.dtype == object else ids)


def _ids(column: pl.Series) -> Any:
    return column.to_numpy() if column.dtype.is_integer() else np.array(column.to_list(), dtype=object)
