"""What the simple experts know of a log: transitions, neighbours, popularity and recent popularity, as arrays."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prism.ops.cpu.compiling import loop
from prism.recommend.data.log import Ints, Log
from prism.recommend.model.experts.user_state import RECENT

# Events between two of a user's that count as near each other.
WINDOW = 8
# An item taken n events ago counts 1 / (1 + n) to this power: for `next` hardly, and beyond the third not at all.
NEXT_POWER, NEAR_POWER, NEXT_ITEMS = 4.0, 0.7, 3
# Entries of a row that are kept: the largest.
KEPT = 200
# Taken from each count of `next`: what came once may have come by chance.
NEXT_DISCOUNT = 0.6
# A row made of weight w counts w / (w + this): two events are no habit.
NEXT_DOUBT, NEAR_DOUBT = 1.0, 8.0
# Periods at whose beginnings recent popularity is known.
PERIODS = 64
# Numbers that all periods together may hold: fewer periods for a large catalogue.
PERIOD_NUMBERS = 1 << 23
# Events that each item is given besides its own: for `popular`, and for `lately`.
GIVEN, GIVEN_LATELY = 1.0, 0.1
# The ε of log(1 + p/ε): for `next` a share of the popularity, which makes the sum with `popular` a mixture of the
# two where both weights are 1; for `near` and `visit` a share of a uniform distribution.
NEXT_FLOOR, NEAR_FLOOR = 1.0, 0.25


class Rows(NamedTuple):
    """A sparse table whose row j is a distribution, less a discount, in order of column.

    Its entries are starts[j] … starts[j + 1] − 1; of a row with more than KEPT the largest are here.
    """

    starts: Ints
    columns: NDArray[np.int32]
    shares: NDArray[np.float32]
    totals: NDArray[np.float32]
    """[items]: the weight that the row was made of; 0: the row is empty."""
    tops: NDArray[np.float32]
    """[items]: the largest share of each row."""


class ExpertTables(NamedTuple):
    """All of it; namedtuples, because compiled loops read them."""

    next: Rows
    """What came directly after each item."""
    near: Rows
    """What was taken at most WINDOW events before or after."""
    bank: NDArray[np.float32]
    """[periods + 2, items]: the features `lately` at the start of each period, `popular`, and zeros."""
    period_starts: Ints
    """[periods]: when each begins."""
    ages: NDArray[np.float64]
    """[3, RECENT]: how much the latest items count for `next`, `near` and `visit`, latest first."""
    floors: NDArray[np.float32]
    """[2, items]: ε of `next`, and of `near` and `visit`."""


def expert_tables(train: Log) -> ExpertTables:
    """From training events."""
    starts, recent = recent_popularity(train)
    popular, n = popularity(train), train.n_items
    return ExpertTables(
        next=transitions(train),
        near=co_occurrences(train),
        bank=np.concatenate([_log_lift(recent), _log_lift(popular[None]), np.zeros((1, n), np.float32)]),
        period_starts=starts,
        ages=np.stack([_powers(NEXT_POWER), _powers(NEAR_POWER), np.ones(RECENT)]),
        floors=np.stack([NEXT_FLOOR * popular, np.full(n, NEAR_FLOOR / n)]).astype(np.float32),
    )


def popularity(train: Log) -> NDArray[np.float64]:
    """[items]: shares of all events."""
    counts = train.item_counts() + GIVEN
    return counts / counts.sum()


def _log_lift(shares: NDArray[np.float64]) -> NDArray[np.float32]:
    """log of a share over that of a uniform distribution."""
    return np.log(shares * shares.shape[-1]).astype(np.float32)


def _powers(power: float) -> NDArray[np.float64]:
    return np.power(1.0 + np.arange(RECENT), -power).astype(np.float64)


def transitions(train: Log) -> Rows:
    """From each event's item to the next event's."""
    return _rows(train, 0, 1, NEXT_DISCOUNT)


def co_occurrences(train: Log, window: int = WINDOW) -> Rows:
    """Both ways, at most `window` events apart."""
    return _rows(train, window, window, 0.0)


def _rows(train: Log, before: int, after: int, discount: float) -> Rows:
    """Row j: the items at most `before` events before and `after` events after an event of item j."""
    by_item = np.argsort(train.items, kind="stable")
    limits = np.concatenate([[0], np.cumsum(train.item_counts())])
    users = train.users
    first, last = train.offsets[users], train.offsets[users + 1]
    return Rows(*_count(train.items, by_item, limits, first, last, before, after, KEPT, discount))


@loop
def _count(items, by_item, limits, first, last, before, after, kept, discount):  # type: ignore[no-untyped-def]
    n = len(limits) - 1
    starts, totals, tops = np.zeros(n + 1, dtype=np.int64), np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
    columns = np.empty(1 << 16, dtype=np.int32)
    shares = np.empty(1 << 16, dtype=np.float32)
    weight, touched = np.zeros(n), np.empty(n, dtype=np.int32)
    for j in range(n):
        size, total = 0, 0.0
        for a in range(limits[j], limits[j + 1]):
            t = by_item[a]
            for s in range(max(first[t], t - before), min(last[t], t + after + 1)):
                i = items[s]
                if s == t or (before > 0 and i == j):
                    continue
                if weight[i] == 0:
                    touched[size] = i
                    size += 1
                weight[i] += 1
                total += 1
        at = starts[j]
        row = np.sort(touched[:size])
        counts = weight[row]
        weight[row] = 0
        if size > kept:  # the largest, in order of column
            largest = np.sort(np.argsort(-counts, kind="mergesort")[:kept])
            row, counts, size = row[largest], counts[largest], kept
        starts[j + 1] = at + size
        if at + size > len(columns):
            room = max(2 * len(columns), at + size)
            columns = np.concatenate((columns, np.empty(room - len(columns), dtype=np.int32)))
            shares = np.concatenate((shares, np.empty(room - len(shares), dtype=np.float32)))
        for b in range(size):
            columns[at + b] = row[b]
            shares[at + b] = (counts[b] - discount) / total
            tops[j] = max(tops[j], shares[at + b])
        totals[j] = total
    return starts, columns[: starts[n]].copy(), shares[: starts[n]].copy(), totals, tops


def recent_popularity(train: Log, half_life: float | None = None) -> tuple[Ints, NDArray[np.float64]]:
    """(starts, shares): at the start of each period, what was taken before it, halved every `half_life` seconds."""
    order = np.argsort(train.times, kind="stable")
    items, times = train.items[order], train.times[order]
    span = max(int(times[-1] - times[0]), 1)
    half = span / 12 if half_life is None else half_life
    periods = int(np.clip(PERIOD_NUMBERS // max(train.n_items, 1), 1, PERIODS))
    edges = (np.arange(periods) * len(times)) // periods
    edges = np.append(edges[1:], len(times))  # the last period begins after all events
    starts = np.append(times[np.minimum(edges[:-1], len(times) - 1)], times[-1] + 1)
    found = np.empty((periods, train.n_items))
    weight, before, clock = np.zeros(train.n_items), 0, int(times[0])
    for n in range(periods):
        start = int(starts[n])
        upto = int(np.searchsorted(times, start, side="left"))
        weight *= 0.5 ** ((start - clock) / half)
        weight += np.bincount(
            items[before:upto], weights=0.5 ** ((start - times[before:upto]) / half), minlength=train.n_items
        )
        before, clock = upto, start
        found[n] = (weight + GIVEN_LATELY) / (weight.sum() + GIVEN_LATELY * train.n_items)
    return starts, found


@loop
def period_of(starts, when):  # type: ignore[no-untyped-def]
    """The latest period that had begun; a time before the first is no time, and gets the last."""
    if when < starts[0]:
        return len(starts) - 1 if when <= 0 else -1
    return np.searchsorted(starts, when, side="right") - 1
