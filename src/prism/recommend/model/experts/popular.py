"""How often items are taken: in all, and of late, as it is known at the start of each of some periods."""

import numpy as np
from numpy.typing import NDArray

from prism.ops.cpu.compiling import loop
from prism.recommend.data.log import Ints, Log

# Periods at whose beginnings recent popularity is known.
PERIODS = 64
# Numbers that all periods together may hold: fewer periods for a large catalogue.
PERIOD_NUMBERS = 1 << 23
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


def recent_popularity(train: Log, half_life: float | None = None) -> tuple[Ints, NDArray[np.float64]]:
    """(starts, shares): at the start of each period, what was taken before it, halved every `half_life` seconds."""
    order = np.argsort(train.times, kind="stable")
    items, times = train.items[order], train.times[order]
    span = max(int(times[-1] - times[0]), 1)
    half = span / 12 if half_life is None else half_life
    periods = period_count(train.n_items)
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
        found[n] = lately_shares(weight)
    return starts, found


@loop
def period_of(starts, when):  # type: ignore[no-untyped-def]
    """The latest period that had begun; a time before the first is no time, and gets the last."""
    if when < starts[0]:
        return len(starts) - 1 if when <= 0 else -1
    return np.searchsorted(starts, when, side="right") - 1
