"""What the simple experts know of a log, as arrays: transitions, neighbours, and what `popular.py` counts."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prism.ops.cpu.compiling import loop
from prism.recommend.data.log import Ints, Log
from prism.recommend.model.experts.popular import log_lift, popularity, recent_popularity
from prism.recommend.model.experts.regression import Company, most_taken
from prism.recommend.model.experts.rows import PAIR_EVENTS, Pairs, Rows, pairs_from, turn_order
from prism.recommend.model.experts.user_state import RECENT

# Events between two of a user's that count as near each other.
WINDOW = 8
# Latest items that count for `next`.
NEXT_ITEMS = 1
# For `follow` an item counts half as much for every so many events, and beyond the tenth not at all.
FOLLOW_HALF_LIFE, FOLLOW_ITEMS = 2.0, 10
# In a row of `follow`, d events later counts 2^{−(d − 1) / CLOSENESS}, and earlier BEFORE of that.
REACH, CLOSENESS, BEFORE = 20, 5.0, 0.25
# Entries of a row that are kept, the largest; and those of all rows together: fewer of each for a large catalogue.
KEPT, ROW_NUMBERS = 200, 1 << 24
# Rounds of fitting how often a transition is no accident.
ROUNDS = 30
# A row made of weight w counts w / (w + this): two events are no habit.
NEXT_DOUBT, NEAR_DOUBT, FOLLOW_DOUBT = 1.0, 8.0, 100.0
# Parts of the users: what training is shown of one, the others' events say.
FOLDS = 5
# The ε of log(1 + p/ε): for `next` what comes by accident, at least so much of it, for `follow` the popularity, which
# makes the sum with the logarithm of either a mixture of the two where both weights are 1; for `visit` a share of a
# uniform distribution.
LEAST_ACCIDENTS, NEAR_FLOOR, FOLLOW_FLOOR = 0.02, 0.25, 1.0
# Accidents that each item is given besides its own, by its popularity.
GIVEN_ACCIDENTS = 1.0


class ExpertTables(NamedTuple):
    """All of it; namedtuples, because compiled loops read them."""

    next: Rows
    """What came directly after each item."""
    near: Rows
    """What was taken at most WINDOW events before or after."""
    follow: Rows
    """What was taken at most REACH events after, the sooner the more, or before."""
    together: Rows
    """What having each item says of the others, all else the same; the largest first, no distribution."""
    pair: Pairs
    """What came directly after two items in turn."""
    bank: NDArray[np.float32]
    """[periods + 3, items]: the features `lately` at the start of each period, `unprompted`, `popular`, and zeros."""
    period_starts: Ints
    """[periods]: when each begins."""
    ages: NDArray[np.float64]
    """[3, RECENT]: how much the latest items count for `next`, `visit` and `follow`, latest first."""
    floors: NDArray[np.float32]
    """[3, items]: ε of `next`, of `visit`, and of `follow` and `together`."""


def expert_tables(train: Log, late: tuple[Ints, NDArray[np.float32]] | None = None) -> ExpertTables:
    """From training events; `late` if the periods and their features are known already."""
    starts, lately = late_features(train) if late is None else late
    follows, unprompted = transitions(train)
    rows = {"next": follows, "near": co_occurrences(train), "follow": followers(train), "together": company(train)}
    return assembled(rows, pairs(train), starts, lately, popularity(train), unprompted)


def late_features(train: Log) -> tuple[Ints, NDArray[np.float32]]:
    """When each period begins, and what was popular of late."""
    starts, recent = recent_popularity(train)
    return starts, log_lift(recent)


def assembled(
    rows: Mapping[str, Rows],
    pair: Pairs,
    starts: Ints,
    lately: NDArray[np.float32],
    popular: NDArray[np.float64],
    unprompted: NDArray[np.float64],
) -> ExpertTables:
    """From the rows of each kind, the features of late at the start of every period, popularity and accidents."""
    n = len(popular)
    accidents = unprompted * max(1.0, LEAST_ACCIDENTS / unprompted.sum())
    return ExpertTables(
        **rows,
        pair=pair,
        bank=np.concatenate([lately, log_lift(np.stack([unprompted, popular])), np.zeros((1, n), np.float32)]),
        period_starts=starts,
        ages=np.stack([np.ones(RECENT), np.ones(RECENT), np.exp2(-np.arange(RECENT) / FOLLOW_HALF_LIFE)]),
        floors=np.stack([accidents, np.full(n, NEAR_FLOOR / n), FOLLOW_FLOOR * popular]).astype(np.float32),
    )


def rows_kept(items: int) -> int:
    """Entries of a row at most, in a catalogue of so many."""
    return int(np.clip(ROW_NUMBERS // max(items, 1), 1, KEPT))


def successions(train: Log) -> Rows:
    """From each event's item to the next event's, as counted."""
    return _rows(train, *around("next"))


def transitions(train: Log) -> tuple[Rows, NDArray[np.float64]]:
    """The same without what came by accident; and the share of each item among all that follows, by accident."""
    return without_accidents(successions(train), popularity(train))


def without_accidents(rows: Rows, popular: NDArray[np.float64]) -> tuple[Rows, NDArray[np.float64]]:
    """Each share by the chance that it is no accident; and the accidents' shares [items]."""
    chance, unprompted = no_accident(rows, popular)
    shares = (rows.shares * chance).astype(np.float32)
    tops = np.zeros_like(rows.tops)
    np.maximum.at(tops, _row_of(rows), shares)
    return rows._replace(shares=shares, tops=tops), unprompted


def no_accident(rows: Rows, popular: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """([entries], [items]): the chance that a pair which came c times belongs together; the share of each accident.

    Of the pairs of items a share π belongs together, and these come c times with the chance 1 / (c (c + 1)); all others
    come by accident, Poisson with the mean (events of the first) · λ_i, i the second. π and λ are those that make the
    counts likeliest (expectation-maximisation). λ is not popularity: an item that many others lead to seldom comes
    unprompted.
    """
    row, n = _row_of(rows), len(popular)
    c = np.rint(rows.shares * rows.totals[row]).astype(np.int64)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, c.max(initial=1) + 1)))])
    before, together = rows.totals[row].astype(np.float64), -np.log(c * (c + 1.0))
    events = max(float(rows.totals.sum()), 1.0)
    dropped = events - c.sum()  # the rarest of long rows: accidents
    pi, unprompted = 0.3 * len(c) / n**2, 0.5 * popular
    found = np.ones(len(c))
    for _ in range(ROUNDS if len(c) else 0):
        expected = before * unprompted[rows.columns]
        by_chance = c * np.log(expected) - expected - log_factorial[c]
        found = 1 / (1 + np.exp(np.minimum(by_chance - together - np.log(pi), 700.0)))
        pi = max(found.sum() / n**2, 1e-300)
        accidents = np.bincount(rows.columns, weights=(1 - found) * c, minlength=n)
        share = max((accidents.sum() + dropped) / events, 1e-9)
        accidents += (GIVEN_ACCIDENTS * n + dropped) * popular
        unprompted = share * accidents / accidents.sum()
    return found, unprompted


def _row_of(rows: Rows) -> Ints:
    """[entries]: the row that each is in."""
    return np.repeat(np.arange(len(rows.totals)), np.diff(rows.starts))


def pairs(train: Log) -> Pairs:
    """What came directly after two items in turn."""
    third = np.flatnonzero(np.arange(train.n_events) >= train.offsets[train.users] + 2)
    triples = [train.items[third - ago] for ago in (2, 1, 0)]
    order, n = turn_order(*triples), train.n_items
    return pairs_from(
        *(part[order] for part in triples), last=(0, n), least=least_count(train.n_events), kept=rows_kept(n)
    )


def least_count(events: int) -> int:
    """So often an item must have come after a pair to have an entry, in a log of so many events."""
    return -(-events // PAIR_EVENTS)


def co_occurrences(train: Log) -> Rows:
    """Both ways, at most WINDOW events apart."""
    return _rows(train, *around("near"))


def followers(train: Log) -> Rows:
    """What came after each event's item, the sooner the more, and a little of what came before."""
    return _rows(train, *around("follow"))


def company(train: Log) -> Rows:
    """What the items that a user has say of the others."""
    found = Company(most_taken(train.item_counts()), train.n_items)
    found.add(train)
    return company_rows(found, found.gram)


def company_rows(company: Company, gram: NDArray[np.int32]) -> Rows:
    """From users who have both of two items."""
    n = len(company.place)
    starts, columns, shares = company.rows(gram, rows_kept(n))
    totals, tops = np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
    totals[company.chosen] = gram.diagonal()
    filled = np.diff(starts) > 0
    tops[filled] = shares[starts[:-1][filled]]
    return Rows(starts, columns, shares, totals, tops)


def around(kind: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How much an item counts that comes some events before, and after, earliest first."""
    if kind == "next":
        return np.zeros(0), np.ones(1)
    if kind == "near":
        return np.ones(WINDOW), np.ones(WINDOW)
    near = np.exp2(-np.arange(REACH) / CLOSENESS)
    return BEFORE * near[::-1], near


def _rows(train: Log, before: NDArray[np.float64], after: NDArray[np.float64]) -> Rows:
    """Row j: the items that stand around the events of item j, weighted by their place, earliest first.

    With `before`, which makes it a matter of company and not of order, an item is no neighbour of its own.
    """
    by_item = np.argsort(train.items, kind="stable")
    limits = np.concatenate([[0], np.cumsum(train.item_counts())])
    users = train.users
    first, last = train.offsets[users], train.offsets[users + 1]
    return Rows(*_count(train.items, by_item, limits, first, last, before, after, rows_kept(train.n_items)))


@loop
def _count(items, by_item, limits, first, last, before, after, kept):  # type: ignore[no-untyped-def]
    n = len(limits) - 1
    starts, totals, tops = np.zeros(n + 1, dtype=np.int64), np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
    columns = np.empty(1 << 16, dtype=np.int32)
    shares = np.empty(1 << 16, dtype=np.float32)
    weight, touched = np.zeros(n), np.empty(n, dtype=np.int32)
    for j in range(n):
        size, total = 0, 0.0
        for a in range(limits[j], limits[j + 1]):
            t = by_item[a]
            for s in range(max(first[t], t - len(before)), min(last[t], t + len(after) + 1)):
                i = items[s]
                if s == t or (len(before) > 0 and i == j):
                    continue
                counts_as = after[s - t - 1] if s > t else before[len(before) + s - t]
                if weight[i] == 0:
                    touched[size] = i
                    size += 1
                weight[i] += counts_as
                total += counts_as
        at = starts[j]
        row = np.sort(touched[:size])
        counts = weight[row]
        weight[row] = 0
        row, counts = largest(row, counts, kept)
        size = len(row)
        starts[j + 1] = at + size
        if at + size > len(columns):
            room = max(2 * len(columns), at + size)
            columns = np.concatenate((columns, np.empty(room - len(columns), dtype=np.int32)))
            shares = np.concatenate((shares, np.empty(room - len(shares), dtype=np.float32)))
        for b in range(size):
            columns[at + b] = row[b]
            shares[at + b] = counts[b] / total
            tops[j] = max(tops[j], shares[at + b])
        totals[j] = total
    return starts, columns[: starts[n]].copy(), shares[: starts[n]].copy(), totals, tops


@loop
def largest(row, counts, kept):  # type: ignore[no-untyped-def]
    """Of a row's columns, those with the largest counts, in order; of equal ones the first."""
    if len(row) <= kept:
        return row, counts
    least = -np.partition(-counts, kept - 1)[kept - 1]
    equal = kept - np.count_nonzero(counts > least)
    chosen, size = np.empty(kept, dtype=np.int64), 0
    for n in range(len(row)):
        if counts[n] < least or (counts[n] == least and equal == 0):
            continue
        equal -= counts[n] == least
        chosen[size] = n
        size += 1
    return row[chosen], counts[chosen]
