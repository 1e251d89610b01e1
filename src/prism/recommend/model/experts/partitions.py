"""What the simple experts know of a log that is read one partition at a time; `tables.py` on all events at once.

Two passes. The first counts items and times. The second adds up what was taken lately and writes, for each training
event, its item and its neighbours to one of several files, by the item: a file holds whole rows of the tables, and is
counted when all are written. Users are divided into folds by their partition, and each row is made for all of them and
for all but each fold, which is what training is shown (`training.py`). In memory are a few numbers for each item and
one partition or file at a time.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prism.ops.cpu.compiling import loop
from prism.recommend.data.log import Ints, Log
from prism.recommend.model.experts.popular import best_faded, count_periods, period_count
from prism.recommend.model.experts.rows import Pairs, Rows, pairs_from, turn_order
from prism.recommend.model.experts.tables import (
    FOLDS,
    REACH,
    around,
    largest,
    least_count,
    rows_kept,
)

# Events whose neighbours one file holds, about, and different times that are counted apart.
FILE_EVENTS, TIMES = 1_000_000, 1_000_000
# Of a record: the item, the fold, the neighbours.
RECORD = 2 + 2 * REACH
Partitions = Callable[[], Iterable[tuple[int, Log]]]


@dataclass
class Surveyed:
    """The first pass."""

    counts: Ints
    """[folds, items]: training events of each."""
    times: dict[str, Ints] = field(default_factory=dict)
    grain: int = 1
    """Seconds between times that are told apart."""

    @classmethod
    def of(cls, partitions: Partitions, items: int) -> "Surveyed":
        """Of every partition, given as (its fold, its training events)."""
        found = cls(np.zeros((FOLDS, items), dtype=np.int64))
        values, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        for fold, log in partitions():
            found.counts[fold] += log.item_counts()
            mine, each = np.unique(log.times // found.grain, return_counts=True)
            values, counts = _added(np.concatenate([values, mine]), np.concatenate([counts, each]))
            while len(values) > TIMES:
                found.grain *= 2
                values, counts = _added(values // 2, counts)
        found.times = {"value": values * found.grain, "count": counts}
        return found

    def period_starts(self, periods: int) -> Ints:
        """As `recent_popularity` has them: each begins with as many events before it, the last after all."""
        values, ends = self.times["value"], np.cumsum(self.times["count"])
        edges = (np.arange(1, periods) * ends[-1]) // periods
        inner = values[np.searchsorted(ends, edges, side="right")]
        return np.append(inner, values[-1] + self.grain)


class Lately:
    """Popularity of late at the start of every period, from events in any order."""

    def __init__(self, about: Surveyed):
        items = about.counts.shape[1]
        self.first = int(about.times["value"][0])
        self.starts = about.period_starts(period_count(items))
        self.counts = np.zeros((len(self.starts), items), dtype=np.int32)

    def add(self, log: Log) -> None:
        """Every event counts from the period that begins after it."""
        count_periods(log, self.starts, self.counts)

    def shares(self) -> NDArray[np.float64]:
        """[periods, items]"""
        return best_faded(self.counts, self.starts, self.first)


class Spills:
    """Files of records, each of a range of items."""

    def __init__(self, work: Path, counts: Ints):
        """`counts`: events of each item."""
        self.work = work
        total = np.cumsum(counts)
        wanted = np.arange(FILE_EVENTS, max(int(total[-1]), 1), FILE_EVENTS)
        cuts = np.searchsorted(total, wanted, side="left") + 1
        self.limits = np.unique(np.concatenate([[0], cuts[cuts < len(counts)], [len(counts)]]))
        for path in map(self.path, range(len(self))):
            path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self.limits) - 1

    def path(self, number: int) -> Path:
        return self.work / f"neighbours-{number:05d}"

    def add(self, fold: int, log: Log) -> None:
        """The records of a partition, at the ends of their files."""
        users = log.users
        records = np.empty((log.n_events, RECORD), dtype=np.int32)
        _neighbours(log.items, log.offsets[users], log.offsets[users + 1], fold, records)
        number = np.searchsorted(self.limits, log.items, side="right") - 1
        order = np.argsort(number, kind="stable")
        ends = np.searchsorted(number[order], np.arange(len(self) + 1))
        for n in np.flatnonzero(np.diff(ends)).tolist():
            with self.path(n).open("ab") as file:
                records[order[ends[n] : ends[n + 1]]].tofile(file)

    def read(self) -> Iterator[tuple[int, int, NDArray[np.int32]]]:
        """(first item, one past the last, records in the order of items) of each file."""
        for n in range(len(self)):
            path, (first, end) = self.path(n), self.limits[n : n + 2].tolist()
            held = (
                np.fromfile(path, dtype=np.int32).reshape(-1, RECORD)
                if path.exists()
                else np.zeros((0, RECORD), np.int32)
            )
            yield first, end, held[np.argsort(held[:, 0], kind="stable")]


def counted_rows(kind: str, first: int, end: int, records: NDArray[np.int32], items: int) -> list[Rows]:
    """Rows first … end − 1 of the table of all users, then of those without each fold; starts count from 0."""
    before, after = around(kind)
    counts_as = np.zeros(2 * REACH)
    counts_as[REACH - len(before) : REACH], counts_as[REACH : REACH + len(after)] = before, after
    limits = np.searchsorted(records[:, 0], np.arange(first, end + 1))
    kept, wide = rows_kept(items), len(before) + len(after)
    room = int(min((end - first) * kept, wide * len(records)))
    columns, shares = np.empty((1 + FOLDS, room), np.int32), np.empty((1 + FOLDS, room), np.float32)
    starts = np.zeros((1 + FOLDS, end - first + 1), np.int64)
    totals, tops = np.zeros((1 + FOLDS, end - first), np.float32), np.zeros((1 + FOLDS, end - first), np.float32)
    places = np.flatnonzero(counts_as)
    _count_folds(
        records, limits, first, items, places, counts_as[places], len(before) > 0, kept,
        columns, shares, starts, totals, tops,
    )  # fmt: skip
    return [
        Rows(starts[g], columns[g, : starts[g, -1]], shares[g, : starts[g, -1]], totals[g], tops[g])
        for g in range(1 + FOLDS)
    ]


def counted_pairs(first: int, end: int, records: NDArray[np.int32], events: Ints, items: int) -> list[Pairs]:
    """Pairs that end in one of the items first … end − 1; `events` [1 + folds]: of all users, without each fold."""
    held = records[(records[:, 1 + REACH] >= 0) & (records[:, 2 + REACH] >= 0)]
    triples = [held[:, column] for column in (1 + REACH, 0, 2 + REACH)]
    order = turn_order(*triples)
    fold, triples = held[order, 1], [part[order] for part in triples]

    def without(g: int) -> Pairs:
        parts = (part[fold != g - 1] for part in triples)
        return pairs_from(*parts, last=(first, end), least=least_count(int(events[g])), kept=rows_kept(items))

    return [without(g) for g in range(1 + FOLDS)]


def fold_counts(counts: Ints) -> Ints:
    """[1 + folds, items]: events of all users, then of those without each fold."""
    total = counts.sum(0)
    return np.stack([total, *(total - counts)])


def _added(values: Ints, counts: Ints) -> tuple[Ints, Ints]:
    different, place = np.unique(values, return_inverse=True)
    return different, np.bincount(place, weights=counts, minlength=len(different)).astype(np.int64)


@loop
def _neighbours(items, first, last, fold, records):  # type: ignore[no-untyped-def]
    """The items at most REACH events before each event and after it, -1 where the history has none."""
    for t in range(len(items)):
        records[t, 0], records[t, 1] = items[t], fold
        at = 2
        for s in range(t - REACH, t + REACH + 1):
            if s != t:
                records[t, at] = items[s] if first[t] <= s < last[t] else -1
                at += 1


@loop
def _count_folds(  # type: ignore[no-untyped-def]
    records, limits, first, items, places, counts_as, company, kept, columns, shares, starts, totals, tops
):
    """`tables._count` for each of the tables at once: a record counts in all but that of its own fold."""
    folds = len(starts) - 1
    apart, seen = np.zeros((items, folds)), np.zeros(items, dtype=np.bool_)
    touched, total = np.empty(items, dtype=np.int32), np.zeros(folds)
    for j in range(len(limits) - 1):
        size = 0
        total[:] = 0
        for a in range(limits[j], limits[j + 1]):
            fold = records[a, 1]
            for p in range(len(places)):
                i = records[a, 2 + places[p]]
                if i < 0 or (company and i == first + j):
                    continue
                if not seen[i]:
                    seen[i] = True
                    touched[size] = i
                    size += 1
                apart[i, fold] += counts_as[p]
                total[fold] += counts_as[p]
        row = np.sort(touched[:size])
        near = apart[row]  # read once: the table of all items does not fit the cache
        for g in range(folds + 1):
            here, counts, found, weight, at = np.empty_like(row), np.empty(size), 0, 0.0, starts[g, j]
            for f in range(folds):  # sums of the others, not what is left of a sum: nothing must be exactly nothing
                if f != g - 1:
                    weight += total[f]
            for a in range(size):
                count = 0.0
                for f in range(folds):
                    if f != g - 1:
                        count += near[a, f]
                if count > 0:
                    here[found], counts[found] = row[a], count
                    found += 1
            mine, counts = largest(here[:found], counts[:found], kept)
            for b in range(len(mine)):
                columns[g, at + b] = mine[b]
                shares[g, at + b] = counts[b] / weight
                tops[g, j] = max(tops[g, j], shares[g, at + b])
            starts[g, j + 1] = at + len(mine)
            totals[g, j] = weight
        seen[row] = False
        apart[row] = 0
