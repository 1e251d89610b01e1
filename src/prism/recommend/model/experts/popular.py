"""How often items are taken: in all, and of late, as it is known at the start of each of some periods."""

import numpy as np
from numpy.typing import NDArray

from prism.ops.cpu.compiling import loop
from prism.recommend.data.log import Ints, Log

# Periods at whose beginnings recent popularity is known.
PERIODS = 64
# Numbers that all periods together may hold: fewer periods for a large catalogue.
PERIOD_NUMBERS = 1 << 23
# Half-lives of an event in the time of the whole log, of which the log chooses one; and where it cannot.
HALF_LIVES, USUAL = (0.0, 3.0, 12.0, 48.0, 192.0), 12.0
# Events that each item is given besides its own: for `popular`, and for `lately`.
GIVEN, GIVEN_LATELY = 1.0, 0.1


def popularity(train: Log) -> NDArray[np.float64]:
    """[items]: shares of all events."""
    return shares_of(train.item_counts())


def shares_of(counts: Ints) -> NDArray[np.float64]:
    """[items]: of all events, where each item is given some besides its own."""
    given = counts + GIVEN
    return given / given.sum()


def log_lift(shares: NDArray[np.float64]) -> NDArray[np.float32]:
    """log of a share over that of a uniform distribution."""
    return np.log(shares * shares.shape[-1]).astype(np.float32)


def period_count(items: int) -> int:
    """Periods of a catalogue of so many items."""
    return int(np.clip(PERIOD_NUMBERS // max(items, 1), 1, PERIODS))


def lately_shares(weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """[items]: from what was taken, older events counting less."""
    return (weight + GIVEN_LATELY) / (weight.sum() + GIVEN_LATELY * len(weight))


def recent_popularity(train: Log) -> tuple[Ints, NDArray[np.float64]]:
    """(starts, shares): at the start of each period, what was taken before it, older events counting less."""
    times = np.sort(train.times)
    periods = period_count(train.n_items)
    edges = (np.arange(1, periods) * len(times)) // periods
    starts = np.append(times[edges], times[-1] + 1)  # the last period begins after all events
    counts = np.zeros((periods, train.n_items), dtype=np.int32)
    count_periods(train, starts, counts)
    return starts, best_faded(counts, starts, int(times[0]))


def count_periods(log: Log, starts: Ints, counts: NDArray[np.int32]) -> None:
    """counts [periods, items] += how often each item was taken since the period before began, and before this one."""
    period = np.searchsorted(starts, log.times, side="right")
    here = period < len(starts)
    np.add.at(counts, (period[here], log.items[here]), 1)


def best_faded(counts: NDArray[np.int32], starts: Ints, first: int) -> NDArray[np.float64]:
    """[periods, items]: shares with the half-life that foresees best what is taken in the period they begin.

    News is forgotten in days, and what is always liked never should be: how often it was taken of late says less of it
    than how often it was taken.
    """
    if len(starts) == 1:
        return faded(counts, starts, first, USUAL)
    begin = len(starts) // 8  # until then too little is known to tell anything
    tried = (faded(counts, starts, first, half_lives) for half_lives in HALF_LIVES)
    return max(tried, key=lambda shares: float((counts[begin + 1 :] * np.log(shares[begin:-1])).sum()))


def faded(counts: NDArray[np.int32], starts: Ints, first: int, half_lives: float) -> NDArray[np.float64]:
    """[periods, items]: shares at the start of each, halved so many times from the first event to the last."""
    rate = half_lives / max(int(starts[-1]) - 1 - first, 1)
    weight, clock, found = np.zeros(counts.shape[1]), first, np.empty(counts.shape)
    for n, start in enumerate(starts.tolist()):
        weight *= 0.5 ** ((start - clock) * rate)
        weight += counts[n] * 0.5 ** ((start - clock) / 2 * rate)  # as if in the middle of their period
        found[n], clock = lately_shares(weight), start
    return found


@loop
def period_of(starts, when):  # type: ignore[no-untyped-def]
    """The latest period that had begun; a time before the first is no time, and gets the last."""
    if when < starts[0]:
        return len(starts) - 1 if when <= 0 else -1
    return np.searchsorted(starts, when, side="right") - 1
