"""The first pass over the files of a log: every item's id, how events spread over time, and how ids and times are read.

What one file holds is kept as a file of its own, so that a pass that was stopped goes on with the next. Time is counted
in buckets of a second at first, and of twice as long whenever there are too many of them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from prism.errors import InputError
from prism.files import write_whole
from prism.recommend.data.clock import read_times
from prism.recommend.data.log import Ints
from prism.recommend.data.prepared.chunks import Source
from prism.recommend.runs.storage import write_frame

# Buckets of time at most.
BUCKETS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a pass found out beside its tables."""

    events: int = 0
    dropped: int = 0
    """Rows without a user, item or time."""
    grain: int = 1
    """Seconds of a bucket."""
    number_users: bool = True
    """Whether every user's id is a number as Python writes it."""
    clock: str = ""
    """How times were read."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Facts, and the tables of items (`item`, in increasing order) and of times (`bucket`, `events`)."""

    facts: Facts
    items: pl.DataFrame
    times: pl.DataFrame

    def cutoffs(self, valid: float, test: float) -> tuple[int, int]:
        """The times at which validation and test begin, each at the start of a bucket."""
        ends, total = np.cumsum(self.times["events"].to_numpy()), self.facts.events
        found = []
        for share in (valid + test, test):
            index = min(round(total * (1 - share)), total - 1)
            found.append(int(self.times["bucket"][int(np.searchsorted(ends, index, side="right"))]) * self.facts.grain)
        return found[0], found[1]


def survey(sources: Sequence[Source], work: Path, *, typed: bool, drop_nulls: bool, time_format: str | None) -> Survey:
    """Reads every file once, or what an earlier call found in it."""
    parts = []
    for number, source in enumerate(sources):
        stem = work / f"survey-{number:06d}"
        if not stem.with_suffix(".json").exists():
            _keep(stem, _read(source, drop_nulls, time_format))
        parts.append(_kept(stem))
    clocks = list(dict.fromkeys(part.facts.clock for part in parts if part.facts.clock))
    if len(clocks) > 1:
        raise InputError(f"files differ in how they tell time ({'; '.join(clocks)}): bring them to one form")
    whole = _merged(parts)
    if not whole.facts.events:
        raise InputError("the files have no events: only headers, or nothing passed")
    return replace(whole, items=whole.items.select(_typed_ids(whole.items["item"], typed)))


def is_numbers(ids: pl.Series) -> bool:
    """Whether all are numbers, or text that Python would write for one: '7', but not '007'."""
    if ids.dtype.is_integer():
        return True
    numbers = ids.cast(pl.Int64, strict=False)
    return not numbers.null_count() and bool((numbers.cast(pl.String) == ids).all())


def _typed_ids(ids: pl.Series, typed: bool) -> pl.Series:
    """In increasing order; numbers where all are and the format has no types."""
    return (ids.cast(pl.Int64) if not typed and is_numbers(ids) else ids).sort()


def _read(source: Source, drop_nulls: bool, time_format: str | None) -> Survey:
    found = Survey(facts=Facts(), items=pl.DataFrame(), times=pl.DataFrame())
    before = 0
    for chunk, done in source.chunks(0, drop_nulls=drop_nulls):
        dropped, before = done - before - chunk.height, done
        if not chunk.height:
            found = replace(found, facts=replace(found.facts, dropped=found.facts.dropped + dropped))
            continue
        place = f"time column {source.columns['time']!r} of {source.name}"
        seconds, _, clock = read_times(chunk["time"], place, time_format)
        if found.facts.clock not in ("", clock):
            raise InputError(f"{place}: some are {clock} and some {found.facts.clock}: bring them to one form")
        facts = Facts(
            events=chunk.height,
            dropped=dropped,
            number_users=found.facts.number_users and is_numbers(chunk["user"].unique()),
            clock=clock,
        )
        one = Survey(facts=facts, items=chunk.select(pl.col("item").unique()), times=_buckets(seconds))
        found = _merged([found, one])
    return found


def _buckets(seconds: Ints) -> pl.DataFrame:
    return pl.DataFrame({"bucket": seconds}).group_by("bucket").agg(pl.len().cast(pl.Int64).alias("events"))


def _merged(parts: Sequence[Survey]) -> Survey:
    """All of them as one, with the coarsest grain, or a coarser one where buckets are too many."""
    some = [part for part in parts if part.facts.events]
    grain = max((part.facts.grain for part in some), default=1)
    facts = Facts(
        events=sum(part.facts.events for part in parts),
        dropped=sum(part.facts.dropped for part in parts),
        grain=grain,
        number_users=all(part.facts.number_users for part in parts),
        clock=next((part.facts.clock for part in some), ""),
    )
    if not some:
        return Survey(facts=facts, items=pl.DataFrame(), times=pl.DataFrame())
    times = pl.concat(
        part.times.with_columns(pl.col("bucket").floordiv(grain // part.facts.grain)) for part in some
    ).pipe(_summed)
    while times.height > BUCKETS:
        facts = replace(facts, grain=2 * facts.grain)
        times = _summed(times.with_columns(pl.col("bucket").floordiv(2)))
    items = pl.concat(part.items for part in some).unique()
    return Survey(facts=facts, items=items, times=times)


def _summed(times: pl.DataFrame) -> pl.DataFrame:
    return times.group_by("bucket").agg(pl.col("events").sum()).sort("bucket")


def _keep(stem: Path, found: Survey) -> None:
    write_frame(stem.with_suffix(".items.parquet"), found.items)
    write_frame(stem.with_suffix(".times.parquet"), found.times)
    write_whole(stem.with_suffix(".json"), json.dumps(asdict(found.facts)).encode())  # last: it is whole now


def _kept(stem: Path) -> Survey:
    facts: dict[str, Any] = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    tables = {name: pl.read_parquet(stem.with_suffix(f".{name}.parquet")) for name in ("items", "times")}
    return Survey(facts=Facts(**facts), **tables)
