"""What the simple experts say of single items, in compiled loops: entries of (item, kind, value), at one moment."""

import numpy as np

from prism.ops.cpu.compiling import loop
from prism.recommend.model.experts.rows import pair_of
from prism.recommend.model.experts.tables import (
    FOLLOW_DOUBT,
    FOLLOW_ITEMS,
    KEPT,
    NEAR_DOUBT,
    NEXT_DOUBT,
    NEXT_ITEMS,
)
from prism.recommend.model.experts.user_state import DISTINCT, EVENTS, RECENT, VISIT, kept

# Kinds of features: entries of single items, then rows of the bank.
OWN, REPEAT, NEXT, PAIR, OF_VISIT, FOLLOW, TOGETHER = range(7)
ENTRIES = 7
KINDS = ("own", "repeat", "next", "pair", "visit", "follow", "together", "popular", "lately", "unprompted")
# The ε of the repeat expert's log(1 + p/ε).
REPEAT_FLOOR = 1e-4
# Entries of the rows of all of a user's items that are read for `together`: the more items, the fewer of each.
TOGETHER_READ = 10_000


@loop
def pair_entries(state, pairs, floors, items, kinds, values, at):  # type: ignore[no-untyped-def]
    """Entries 1 + p/ε of the row of the latest two items, from place `at` on; gives the place after them."""
    pair = pair_of(pairs, state.recent[0], state.recent[1])
    if pair < 0:
        return at
    rows = pairs.rows
    for b in range(rows.starts[pair], rows.starts[pair + 1]):
        i = rows.columns[b]
        items[at], kinds[at], values[at] = i, PAIR, 1 + rows.shares[b] / floors[i]
        at += 1
    return at


@loop
def neighbour_entries(state, latest, rows, ages, doubt, floors, kind, sums, items, kinds, values, at):  # type: ignore[no-untyped-def]
    """Entries 1 + p/ε of the rows of the `latest` items, from place `at` on; gives the place after them.

    `sums` [items] is zero before and after.
    """
    first, total, columns, shares = at, 0.0, rows.columns, rows.shares
    for a in range(min(latest, len(ages))):
        j = state.recent[a]
        if j < 0:
            break
        total += ages[a]
        weight = ages[a] * rows.totals[j] / (rows.totals[j] + doubt)
        for b in range(rows.starts[j], rows.starts[j + 1]):
            i = columns[b]
            before = sums[i]
            items[at] = i  # kept if the item is new: a branch would be mispredicted at every third entry
            at += before == 0
            sums[i] = before + weight * shares[b]
    for n in range(first, at):
        i = items[n]
        kinds[n] = kind
        values[n] = 1 + sums[i] / (total * floors[i])
        sums[i] = 0
    return at


@loop
def together_entries(state, rows, floors, sums, items, kinds, values, at):  # type: ignore[no-untyped-def]
    """Entries p/ε above 1, p ∝ the sum of the rows of the user's own items; gives the place after them.

    What is no more than popularity is left out: it would be an entry for every item. `sums` [items] is zero before and
    after.
    """
    first, n, columns, shares = at, kept(state), rows.columns, rows.shares
    each = TOGETHER_READ // max(n, 1)
    for s in range(n):
        j = state.items[s]
        for b in range(rows.starts[j], min(rows.starts[j] + each, rows.starts[j + 1])):
            i = columns[b]
            before = sums[i]
            items[at] = i  # kept if the item is new, as above
            at += before == 0
            sums[i] = before + shares[b]
    last, at, total = at, first, 0.0
    for m in range(first, last):
        total += sums[items[m]]
    for m in range(first, last):
        i = items[m]
        items[at], kinds[at], values[at] = i, TOGETHER, sums[i] / (total * floors[i])
        at += values[at] > 1
        sums[i] = 0
    return at


@loop
def entries(state, tables, own, sums, items, kinds, values, at):  # type: ignore[no-untyped-def]
    """All entries of a moment, from place `at` on; gives the place after them.

    A feature is the logarithm of its value here: taking those of many at once is faster.
    """
    for n in range(state.facts[DISTINCT]):
        items[at], kinds[at], values[at] = state.seen[n], OWN, np.e
        at += 1
    for s in range(kept(state)):
        items[at], kinds[at], values[at] = state.items[s], REPEAT, 1 + own[s] / REPEAT_FLOOR
        at += 1
    ages, floors, every, visit = tables.ages, tables.floors, state.facts[EVENTS], state.facts[VISIT]
    few = min(every, NEXT_ITEMS)
    at = neighbour_entries(
        state, few, tables.next, ages[0], NEXT_DOUBT, floors[0], NEXT, sums, items, kinds, values, at
    )
    at = pair_entries(state, tables.pair, floors[0], items, kinds, values, at)
    at = neighbour_entries(
        state, visit, tables.near, ages[1], NEAR_DOUBT, floors[1], OF_VISIT, sums, items, kinds, values, at
    )
    some = min(every, FOLLOW_ITEMS)
    at = neighbour_entries(
        state, some, tables.follow, ages[2], FOLLOW_DOUBT, floors[2], FOLLOW, sums, items, kinds, values, at
    )
    return together_entries(state, tables.together, floors[2], sums, items, kinds, values, at)


@loop
def most_entries(state, known):  # type: ignore[no-untyped-def]
    """No moment has more: an item once for each kind, and no more than the rows of the latest items hold."""
    most = 2 * state.facts[DISTINCT] + min(5 * known, (NEXT_ITEMS + 1 + FOLLOW_ITEMS + RECENT) * KEPT + TOGETHER_READ)
    return most + 1  # one is written beyond the last
