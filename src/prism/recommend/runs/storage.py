"""A recommender's folder: config.json, the log's three tables, its split, and weights in best-*/model.safetensors."""

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from prism.errors import InputError, Note
from prism.files import write_whole
from prism.recommend.config import FitConfig
from prism.recommend.data.items import item_values
from prism.recommend.data.log import Ids, Ints, Log, id_column, numbers_among, without_events
from prism.recommend.data.splits import Queries, Split
from prism.recommend.data.splits import split as divide
from prism.train.folder import is_first_process
from prism.train.settings import read_settings, refuse_others

CONFIG, ITEMS, FEATURES, EVENTS = "config.json", "items.parquet", "features.parquet", "events.parquet"
SPLIT, STREAMED = "split.json", "prepared.json"
# What tells an exported model from a run.
ABOUT = "model.json"
FORMATS: dict[str, Callable[[pl.DataFrame, io.BytesIO], None]] = {
    ".parquet": pl.DataFrame.write_parquet,
    ".csv": pl.DataFrame.write_csv,
    ".jsonl": pl.DataFrame.write_ndjson,
}


def write_split(folder: Path, split: Split) -> None:
    """Items in the order of their codes, events by user with what each is for; every file appears whole."""
    log = split.log
    uses = {name: np.zeros(log.n_events, dtype=bool) for name in ("valid", "test")}
    for name, mask in uses.items():
        mask[getattr(split, name).positions] = True
    facts: dict[str, Any] = {"protocol": split.protocol, "columns": dict(log.columns)}
    facts |= {name: getattr(split, name).facts() for name in uses}
    columns = _columns("user", log.user_ids[log.users]) | {"code": log.items, "time": log.times}
    write_items(folder, log)
    write_frame(folder / EVENTS, pl.DataFrame(columns | {"train": split.training_events()} | uses))
    write_whole(folder / SPLIT, json.dumps(facts, indent=1).encode())


def write_items(folder: Path, log: Log) -> None:
    """Items in the order of their codes, and what is known of them."""
    names = [None] * log.n_items if log.item_names is None else log.item_names.tolist()
    items = pl.DataFrame(_columns("item", log.item_ids) | {"name": pl.Series(names, dtype=pl.String)})
    write_frame(folder / ITEMS, items)
    if log.item_features is not None:
        write_frame(folder / FEATURES, log.item_features)


def read_split(folder: Path, name: str, protocol: str) -> Split:
    """The inverse of `write_split`. A folder from before splits were kept is divided again, with a note."""
    events = _frame(folder / EVENTS, {"user", "code", "time"})
    log = _with_events(read_items(folder, name), events)
    if not (folder / SPLIT).exists():
        message = f"{folder} was written before splits were kept with a run: its events are divided by {protocol} again"
        warnings.warn(Note(message), stacklevel=3)
        return divide(log, protocol)
    facts, queries = read_settings(folder / SPLIT, "fit it again"), {}
    log = replace(log, columns=facts.get("columns", {}))
    try:
        for part in ("valid", "test"):
            positions = np.flatnonzero(events[part].to_numpy())
            queries[part] = Queries(users=log.users[positions], positions=positions, **facts[part])
        chosen, items = log.where(events["train"].to_numpy()), np.arange(queries["test"].candidates)
        train = chosen.recoded(users=np.flatnonzero(chosen.lengths), items=items)
        return Split(protocol=facts["protocol"], log=log, train=train, **queries)
    except (KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{folder / SPLIT} and {EVENTS} do not belong together ({error}): fit it again") from None


def _with_events(log: Log, events: pl.DataFrame) -> Log:
    """Codes included; users without events are gone."""
    user = _ids(events, "user")
    first = np.flatnonzero(np.append(True, user[1:] != user[:-1])) if len(user) else np.zeros(0, dtype=np.int64)
    return replace(
        log,
        offsets=np.append(first, len(user)),
        items=events["code"].to_numpy().astype(np.int32),
        times=events["time"].to_numpy().astype(np.int64),
        user_ids=user[first],
    )


def read_items(folder: Path, name: str) -> Log:
    """The inverse of `write_items`: a log without events."""
    items = _frame(folder / ITEMS, {"item", "name"})
    names = items["name"]
    features = _frame(folder / FEATURES) if (folder / FEATURES).exists() else None
    shown = None if names.null_count() == len(names) else np.array(names.to_list(), dtype=object)
    return replace(without_events(_ids(items, "item"), name), item_names=shown, item_features=features)


def open_run(out: Path | None, split: Split, config: FitConfig, store: bool) -> None:
    """Makes the run's folder, or finds in it a run of the same config and events that can go on; the first process."""
    if out is None or not is_first_process():
        return
    if (out / CONFIG).exists():
        refuse_others(out, asdict(config), asdict(read_config(out)), "choose another folder")
        if store:
            _check_stored(read_split(out, "", config.protocol), split, config, out)
        return
    if config.features:
        item_values(split.train, config.features)  # a wrong column is refused before anything is written
    if store:
        write_split(out, split)
    write_config(out, config)  # last: a folder with a config is a run


def _check_stored(stored: Split, split: Split, config: FitConfig, out: Path) -> None:
    if not same_split(stored, split):
        raise InputError(f"{out} holds a run on other events, or divided otherwise; choose another folder")
    if config.features and not item_values(stored.log, config.features).same(item_values(split.log, config.features)):
        raise InputError(f"{out} holds a run with other features of its items; choose another folder")


def write_config(folder: Path, config: FitConfig) -> None:
    write_whole(folder / CONFIG, config.to_json().encode())


def read_config(folder: Path) -> FitConfig:
    """The config of a run; a folder that is none gets a clear line."""
    path = folder / CONFIG
    if (folder / ABOUT).is_file():
        raise InputError(f"{folder} is an exported model: give the run that it was made from")
    if not path.is_file():
        raise InputError(f"{folder} is not a run: it has no {CONFIG}; `prism fit DATA --out {folder}` makes one")
    try:
        return FitConfig.from_json(path.read_text(encoding="utf-8"))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def settled(out: Path | None) -> dict[str, Any] | None:
    """What a run that goes on settled by the clock when it began; None: no run is there."""
    if out is None or not (out / CONFIG).exists():
        return None
    begun = read_config(out)
    return {"epochs": begun.train.epochs, "lr": begun.train.lr, "focus": begun.objective.focus}


def is_streamed(folder: Path) -> bool:
    """Whether a run was trained on a prepared log, which holds its events."""
    return (folder / STREAMED).is_file()


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    """A file in the format of its suffix (`FORMATS`) that appears whole."""
    buffer = io.BytesIO()
    writer(path)(frame, buffer)
    write_whole(path, buffer.getvalue())


def writer(path: Path) -> Callable[[pl.DataFrame, io.BytesIO], None]:
    """What writes the format of a file's suffix."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: a table is written as {', '.join(FORMATS)}, got {path.suffix or 'no suffix'!r}")
    return FORMATS[path.suffix.lower()]


def same_split(a: Split, b: Split) -> bool:
    """Whether the same events of the same users and items, in the same codes, train and are asked about."""
    pairs = [(getattr(a.log, name), getattr(b.log, name)) for name in ("offsets", "items", "times")]
    pairs += [(getattr(a.train, name), getattr(b.train, name)) for name in ("offsets", "items", "times")]
    pairs += [(a.log.user_ids, b.log.user_ids), (a.log.item_ids, b.log.item_ids)]
    pairs += [(a.valid.positions, b.valid.positions), (a.test.positions, b.test.positions)]
    facts = ((a.valid.facts(), b.valid.facts()), (a.test.facts(), b.test.facts()))
    return all(np.array_equal(x, y) for x, y in pairs) and all(x == y for x, y in facts)


def ranking_frame(log: Log, users: Ints, scores: np.ndarray, codes: Ints) -> pl.DataFrame:
    """One row per recommendation: user, rank, item, score and, where items have one, name."""
    row, column = np.nonzero(scores > -np.inf)
    items = codes[row, column]
    frame = pl.DataFrame(
        {
            "user": id_column(log.user_ids[users[row]]),
            "rank": (column + 1).astype(np.int32),
            "item": id_column(log.item_ids[items]),
            "score": scores[row, column],
        }
    )
    return frame if log.item_names is None else frame.with_columns(name=pl.Series(log.item_names[items].tolist()))


def _frame(path: Path, columns: set[str] | None = None) -> pl.DataFrame:
    try:
        frame = pl.read_parquet(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: the run was not saved with its events") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    if columns is not None and not columns <= set(frame.columns):
        raise InputError(f"{path} has columns {frame.columns}, expected {sorted(columns)}")
    return frame


def _columns(name: str, ids: Ids) -> dict[str, Any]:
    """Ids as a column; of numbers beside text a second column marks the numbers."""
    numbers = numbers_among(ids)
    return {name: id_column(ids)} | ({f"{name}_is_number": numbers} if numbers.any() else {})


def _ids(frame: pl.DataFrame, name: str) -> Any:
    """The inverse of `_columns`."""
    column = frame[name]
    if column.dtype.is_integer():
        return column.to_numpy()
    values = column.to_list()
    if f"{name}_is_number" in frame.columns:
        numbers = frame[f"{name}_is_number"].to_list()
        values = [int(id_) if number else id_ for id_, number in zip(values, numbers, strict=True)]
    return np.array(values, dtype=object)
