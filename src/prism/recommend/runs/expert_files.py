"""What the simple experts know of a prepared log, kept beside its partitions: made once, mapped into memory to be used.

Arrays are files of plain numbers, one for each part of each table; `about.json` has their types, sizes and checksums,
the log that they were made from and the numbers that they depend on. Other numbers, or another log: they are made anew.
"""

import json
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.errors import InputError
from prism.files import checksum, in_turn, whole_folder, write_whole
from prism.recommend.data.log import Log
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.model.experts import partitions, popular, regression, rows, tables
from prism.recommend.model.experts.partitions import Lately, Spills, Surveyed, counted_pairs, counted_rows, fold_counts
from prism.recommend.model.experts.popular import log_lift, shares_of
from prism.recommend.model.experts.regression import Company, most_taken
from prism.recommend.model.experts.rows import Pairs, Rows, table_from
from prism.recommend.model.experts.tables import (
    FOLDS,
    ExpertTables,
    assembled,
    company_rows,
    without_accidents,
)
from prism.recommend.model.experts.training import Folds

FOLDER, ABOUT, VERSION = "experts", "about.json", 3
KINDS = ExpertTables._fields[:3]
TOGETHER, PAIR = "together", "pair"


def keep_tables(prepared: Prepared, say: Callable[[str], None] = lambda line: None) -> None:
    """Makes them, unless they are there; where another process makes them, waits for it."""
    folder = prepared.folder / FOLDER
    if _kept(folder, prepared):  # without a lock: the folder may be one that is only read
        return
    with in_turn(folder, say):
        if _kept(folder, prepared):
            return
        with whole_folder(folder) as part:
            _make(prepared, part, say)


def read_tables(prepared: Prepared) -> tuple[ExpertTables, Folds]:
    """(tables of all training events, tables without each fold); a changed file is an error."""
    folder = prepared.folder / FOLDER
    about = _about(folder)
    arrays = {name: _mapped(folder / name, **facts) for name, facts in about["files"].items()}
    counts, lately, starts, unprompted = (arrays[n] for n in ("counts", "lately", "period_starts", "unprompted"))

    def table(g: int, lately: NDArray[np.float32]) -> ExpertTables:
        of_items = {kind: table_from(Rows, arrays, _name(kind, g)) for kind in (*KINDS, TOGETHER)}
        of_pairs = table_from(Pairs, arrays, _name(PAIR, g))
        return assembled(of_items, of_pairs, starts, lately, shares_of(counts[g]), unprompted[g])

    whole = table(0, lately)
    return whole, Folds.joined(whole, [table(g, lately[:0]) for g in range(1, 1 + FOLDS)])  # no periods of their own


def _kept(folder: Path, prepared: Prepared) -> bool:
    return bool(_about(folder).get("made_from") == _made_from(prepared))


def _make(prepared: Prepared, part: Path, say: Callable[[str], None]) -> None:
    items = prepared.manifest.candidates

    def logs() -> Iterator[tuple[int, Log]]:
        for number in range(len(prepared)):
            yield number % FOLDS, prepared.split([number]).train

    found = Surveyed.of(logs, items)
    say(f"{prepared.folder}: items and times are counted")
    lately, spills = Lately(found), Spills(part, found.counts.sum(0))
    folds = [Company(most_taken(found.counts.sum(0)), items) for _ in range(FOLDS)]
    for fold, log in logs():
        lately.add(log)
        spills.add(fold, log)
        folds[fold].add(log)
    say(f"{prepared.folder}: neighbours are written, in {len(spills)} parts")
    counts = fold_counts(found.counts)
    _write(part, "counts", counts)
    _write(part, "period_starts", lately.starts)
    _write(part, "lately", log_lift(lately.shares()))
    shapes = {"counts": counts.shape, "unprompted": counts.shape, "lately": (len(lately.starts), items)}
    for first, end, records in spills.read():
        for kind in KINDS:
            for g, counted in enumerate(counted_rows(kind, first, end, records, items)):
                _append(part, _name(kind, g), counted, first)
        for g, pairs in enumerate(counted_pairs(first, end, records, counts.sum(1), items)):
            _append_pairs(part, _name(PAIR, g), pairs, first)
    everyone = reduce(np.add, (one.gram for one in folds))
    for g, gram in enumerate(chain([everyone], (everyone - one.gram for one in folds))):
        _append(part, _name(TOGETHER, g), company_rows(folds[0], gram), 0)
    say(f"{prepared.folder}: neighbours are counted")
    for g in range(1 + FOLDS):
        _drop_accidents(part, g, shares_of(counts[g]))
    for number in range(len(spills)):
        spills.path(number).unlink(missing_ok=True)
    files = {
        path.name: {"dtype": _dtype(path.name), "shape": shapes.get(path.name, (-1,)), "bytes": path.stat().st_size}
        | {"sha256": checksum(path)}
        for path in sorted(part.iterdir())
    }
    about = {"version": VERSION, "made_from": _made_from(prepared), "files": files}
    write_whole(part / ABOUT, json.dumps(about, indent=1).encode())
    say(f"{prepared.folder}: what the simple experts know of it is in {FOLDER}")


def _drop_accidents(part: Path, g: int, popular: NDArray[np.float64]) -> None:
    """What came next by accident is known when all rows are there: it is taken from them, and kept beside them."""
    table = _name("next", g)
    counted = Rows(*(np.fromfile(part / (table + name), dtype=_dtype(name)) for name in Rows._fields))
    found, unprompted = without_accidents(counted, popular)
    _write(part, "unprompted", unprompted)
    for name in ("shares", "tops"):
        (part / (table + name)).unlink()
        _write(part, table + name, getattr(found, name))


def _append(part: Path, name: str, rows: Rows, first: int) -> None:
    """Rows of a range of items, after those of the ranges before it."""
    starts = rows.starts + _written(part, f"{name}columns")
    for field, values in rows._replace(starts=starts if first == 0 else starts[1:])._asdict().items():
        _write(part, name + field, values)


def _append_pairs(part: Path, name: str, pairs: Pairs, first: int) -> None:
    """Pairs that end in a range of items, after those of the ranges before it."""
    starts = pairs.starts + _written(part, f"{name}first")
    _write(part, f"{name}starts", starts if first == 0 else starts[1:])
    _write(part, f"{name}first", pairs.first)
    _append(part, f"{name}rows.", pairs.rows, first)


def _written(part: Path, name: str) -> int:
    """Numbers of four bytes that stand in a file."""
    path = part / name
    return path.stat().st_size // 4 if path.exists() else 0


def _write(part: Path, name: str, values: NDArray[Any]) -> None:
    with (part / name).open("ab") as file:
        np.ascontiguousarray(values, dtype=_dtype(name)).tofile(file)


def _name(kind: str, g: int) -> str:
    """What the names of a table's files begin with."""
    return f"{kind}-{g}."


def _dtype(name: str) -> str:
    kinds = {"starts": "<i8", "first": "<i4", "columns": "<i4", "shares": "<f4", "totals": "<f4", "tops": "<f4"}
    kinds |= {"counts": "<i8", "period_starts": "<i8", "lately": "<f4", "unprompted": "<f8"}
    return kinds[name.rpartition(".")[2]]


def _mapped(path: Path, *, dtype: str, shape: list[int], bytes: int, sha256: str) -> NDArray[Any]:
    if not path.is_file() or path.stat().st_size != bytes or checksum(path) != sha256:
        raise InputError(f"{path} is not what was written: remove {path.parent}, and prism fit makes it again")
    if not bytes:
        return np.zeros(0, dtype=dtype)
    # a private copy where it is written to, which nothing does: loops compiled for usual arrays take it
    return np.asarray(np.memmap(path, dtype=dtype, mode="c")).reshape(shape)


def _about(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("version") == VERSION else {}


def _made_from(prepared: Prepared) -> dict[str, Any]:
    """The log, and every number that the tables depend on."""
    names = (
        "WINDOW", "REACH", "CLOSENESS", "BEFORE", "KEPT", "ROW_NUMBERS", "ROUNDS", "GIVEN_ACCIDENTS",
    )  # fmt: skip
    numbers = {name.lower(): getattr(tables, name) for name in names}
    numbers |= {name.lower(): getattr(popular, name) for name in ("PERIODS", "PERIOD_NUMBERS", "GIVEN", "GIVEN_LATELY")}
    numbers |= {name.lower(): getattr(regression, name) for name in ("MOST_ITEMS", "LATEST", "RIDGE")}
    numbers |= {name.lower(): getattr(rows, name) for name in ("DISCOUNT", "FEWEST", "PAIR_EVENTS")}
    return {"log": prepared.digest, "folds": FOLDS, "times": partitions.TIMES, **numbers}
