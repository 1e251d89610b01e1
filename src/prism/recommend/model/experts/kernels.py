"""What the simple experts see and say, in compiled loops: from a user's state, at one moment."""

import numpy as np

from prism.ops.cpu.compiling import loop
from prism.recommend.model.experts.tables import (
    FOLLOW_DOUBT,
    FOLLOW_ITEMS,
    KEPT,
    NEAR_DOUBT,
    NEXT_DOUBT,
    NEXT_ITEMS,
    period_of,
)
from prism.recommend.model.experts.user_state import (
    DAY,
    DISTINCT,
    EVENTS,
    LAST_SLOT,
    LAST_TIME,
    RECENT,
    VISIT,
    WEEK,
    find_by,
    kept,
    take,
)

# Kinds of features: entries of single items, then rows of the bank.
OWN, REPEAT, NEXT, OF_VISIT, FOLLOW, TOGETHER = range(6)
ENTRIES = 6
KINDS = ("own", "repeat", "next", "visit", "follow", "together", "popular", "lately", "unprompted")
# Of these, the rows of the bank.
ROWS = 3
# The ε of the repeat expert's log(1 + p/ε).
REPEAT_FLOOR = 1e-4
# Entries of the rows of all of a user's items that are read for `together`: the more items, the fewer of each.
TOGETHER_READ = 10_000
CONTEXT = 13
AGES, COUNTS, GAPS = 24, 16, 64
# Where each part of the repeat expert's weights begins.
OF_COUNT, OF_GAP, OF_DAY, OF_WEEK, OF_AFTER = (
    AGES,
    AGES + COUNTS,
    AGES + COUNTS + GAPS,
    AGES + COUNTS + GAPS + 1,
    AGES + COUNTS + GAPS + 2,
)
WEIGHTS = OF_AFTER + 1

_MANTISSA = (1 << 52) - 1
_ROOT_TWO = int(np.float64(2**0.5).view(np.int64)) & _MANTISSA


@loop
def bucket(number, buckets):  # type: ignore[no-untyped-def]
    """⌊2 log₂(1 + number)⌋, at most the last."""
    bits = np.float64(1 + max(number, 0)).view(np.int64)  # log₂ of a whole number from its exponent and mantissa
    half = 1 if (bits & _MANTISSA) >= _ROOT_TWO else 0
    return min(2 * ((bits >> 52) - 1023) + half, buckets - 1)


@loop
def clock(now, out):  # type: ignore[no-untyped-def]
    """out [4]: cos and sin of the time of day, and of the time of the week."""
    day, week = 2 * np.pi * (now % DAY) / DAY, 2 * np.pi * (now % WEEK) / WEEK
    out[0], out[1], out[2], out[3] = np.cos(day), np.sin(day), np.cos(week), np.sin(week)


@loop
def repeat_features(state, slot, now, hands, index, value):  # type: ignore[no-untyped-def]
    """index [3]: the buckets of age, count and time since; value [3]: time of day, of week, what followed before."""
    count = state.counts[slot]
    index[0] = bucket(state.facts[EVENTS] - 1 - state.places[slot], AGES)
    index[1] = OF_COUNT + bucket(count - 1, COUNTS)
    index[2] = OF_GAP + bucket(now - state.times[slot], GAPS)
    value[0] = (state.rhythm[slot, 0] * hands[0] + state.rhythm[slot, 1] * hands[1]) / count
    value[1] = (state.rhythm[slot, 2] * hands[2] + state.rhythm[slot, 3] * hands[3]) / count
    value[2] = 1.0 if state.after[state.facts[LAST_SLOT]] == state.items[slot] else 0.0


@loop
def repeat_shares(state, now, weights, out):  # type: ignore[no-untyped-def]
    """out[slot]: the distribution over the user's own items; gives its largest share (0: no items)."""
    n = kept(state)
    if n == 0:
        return 0.0
    index, value, hands = np.empty(3, dtype=np.int64), np.empty(3), np.empty(4)
    clock(now, hands)
    top = -np.inf
    for s in range(n):
        repeat_features(state, s, now, hands, index, value)
        score = weights[index[0]] + weights[index[1]] + weights[index[2]]
        score += weights[OF_DAY] * value[0] + weights[OF_WEEK] * value[1] + weights[OF_AFTER] * value[2]
        out[s] = score
        top = max(top, score)
    total = 0.0
    for s in range(n):
        out[s] = np.exp(out[s] - top)
        total += out[s]
    for s in range(n):
        out[s] /= total
    return 1 / total


@loop
def look(state, now, tables, weights, own, context, rows):  # type: ignore[no-untyped-def]
    """Fills own [slots] (shares of the user's own items), context [CONTEXT] and rows [ROWS] (of the bank)."""
    facts = state.facts
    events, distinct = facts[EVENTS], facts[DISTINCT]
    top = repeat_shares(state, now, weights, own)
    period = period_of(tables.period_starts, now)
    zeros = len(tables.bank) - 1
    rows[0] = zeros - 1
    rows[1] = zeros if period < 0 else period
    rows[2] = zeros - 2
    context[:] = 0
    context[0] = np.log1p(events) / 4
    context[1] = np.log1p(distinct) / 4
    if events > 0:
        last = state.recent[0]
        since = max(now - facts[LAST_TIME], 0)
        context[2] = 1 - distinct / events
        context[3] = state.habit[0]
        context[4] = np.log1p(since) / 8
        context[5] = 1.0 if since == 0 else 0.0
        context[6] = np.log1p(tables.next.totals[last]) / 4
        context[7] = tables.next.tops[last]
        context[8] = np.log1p(tables.near.totals[last]) / 4
        context[9] = tables.near.tops[last]
        context[10] = top
        context[11] = 1.0 if state.counts[facts[LAST_SLOT]] > 1 else 0.0
        context[12] = np.log1p(facts[VISIT]) / 2


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
    most = 2 * state.facts[DISTINCT] + min(4 * known, (NEXT_ITEMS + FOLLOW_ITEMS + RECENT) * KEPT + TOGETHER_READ)
    return most + 1  # one is written beyond the last


@loop
def add_moment(out, weights, state, rows, tables, own, sums, items, kinds, values):  # type: ignore[no-untyped-def]
    """out [items] += Σ weight · feature."""
    for n in range(entries(state, tables, own, sums, items, kinds, values, 0)):
        out[items[n]] += weights[kinds[n]] * np.log(values[n])
    for f in range(len(rows)):
        weight = weights[ENTRIES + f]
        row = tables.bank[rows[f]]
        for i in range(len(out)):
            out[i] += weight * row[i]


@loop
def add_live(out, weights, state, rows, tables, own):  # type: ignore[no-untyped-def]
    """`add_moment` for one user, with memory of its own."""
    known = len(out)
    most = most_entries(state, known)
    items, kinds = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int8)
    add_moment(out, weights, state, rows, tables, own, np.zeros(known), items, kinds, np.empty(most, dtype=np.float32))


@loop
def forget(state, slots):  # type: ignore[no-untyped-def]
    """Back to a user without events."""
    for n in range(state.facts[DISTINCT]):
        slots[state.seen[n]] = -1
    state.facts[:] = 0
    state.facts[LAST_SLOT] = -1
    state.recent[:] = -1
    state.habit[:] = 0


@loop
def window_entries(  # type: ignore[no-untyped-def]
    items, times, begin, first, last, state, slots, own, sums, tables, weights, novel, timed, contexts, rows, starts
):
    """Features of the events first … last − 1 of a history that begins at `begin`, each from the events before it.

    Fills contexts, rows and starts; gives (items, kinds, values). Where only items that are new to the user are asked
    for (`novel`), an event that is none has no features: it teaches the model alone.
    """
    forget(state, slots)
    known, zeros = len(sums), len(tables.bank) - 1
    columns = np.empty(1 << 14, dtype=np.int32)
    kinds = np.empty(1 << 14, dtype=np.int8)
    values = np.empty(1 << 14, dtype=np.float32)
    at = 0
    for t in range(begin, last):
        slot, again = find_by(slots, state, items[t])
        if t >= first:
            now = times[t] if timed or t == begin else times[t - 1]
            look(state, now, tables, weights, own, contexts[t - first], rows[t - first])
            starts[t - first] = at
            if novel and again:
                rows[t - first] = zeros
            else:
                need = at + most_entries(state, known)
                if need > len(columns):
                    more = max(need, 2 * len(columns)) - len(columns)
                    columns = np.concatenate((columns, np.empty(more, dtype=np.int32)))
                    kinds = np.concatenate((kinds, np.empty(more, dtype=np.int8)))
                    values = np.concatenate((values, np.empty(more, dtype=np.float32)))
                at = entries(state, tables, own, sums, columns, kinds, values, at)
        slots[items[t]] = take(state, slot, again, items[t], times[t])
    starts[last - first] = at
    return columns[:at], kinds[:at], values[:at]


@loop
def _catch_up(state, slots, items, times, at, until, known):  # type: ignore[no-untyped-def]
    """Takes the events at … until − 1, but for items that the model does not know."""
    for t in range(at, until):
        if items[t] < known:
            slot, again = find_by(slots, state, items[t])
            slots[items[t]] = take(state, slot, again, items[t], times[t])


@loop
def query_contexts(offsets, items, times, users, positions, known, state, tables, weights, timed, contexts):  # type: ignore[no-untyped-def]
    """What the gates look at, for every query, in order of user and position."""
    slots = np.full(known, -1, dtype=np.int32)
    own, rows = np.empty(len(state.items)), np.empty(ROWS, dtype=np.int64)
    before, t = -1, 0
    for q in range(len(users)):
        if users[q] != before:
            forget(state, slots)
            before, t = users[q], offsets[users[q]]
        _catch_up(state, slots, items, times, t, positions[q], known)
        t = positions[q]
        now = times[t] if timed or state.facts[EVENTS] == 0 else state.facts[LAST_TIME]
        look(state, now, tables, weights, own, contexts[q], rows)


@loop
def add_to_queries(out, gates, offsets, items, times, users, positions, known, state, tables, weights, timed):  # type: ignore[no-untyped-def]
    """out[q] += Σ weight · feature, for every query, in order of user and position."""
    slots = np.full(known, -1, dtype=np.int32)
    own, rows, context = np.empty(len(state.items)), np.empty(ROWS, dtype=np.int64), np.empty(CONTEXT, dtype=np.float32)
    most = len(state.items) + 5 * known + 1
    columns, kinds = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int8)
    values, sums = np.empty(most, dtype=np.float32), np.zeros(known)
    before, t = -1, 0
    for q in range(len(users)):
        if users[q] != before:
            forget(state, slots)
            before, t = users[q], offsets[users[q]]
        _catch_up(state, slots, items, times, t, positions[q], known)
        t = positions[q]
        now = times[t] if timed or state.facts[EVENTS] == 0 else state.facts[LAST_TIME]
        look(state, now, tables, weights, own, context, rows)
        add_moment(out[q], gates[q], state, rows, tables, own, sums, columns, kinds, values)


@loop
def repeat_examples(offsets, items, times, users, state, known, timed, keep, most, starts, index, value, chosen):  # type: ignore[no-untyped-def]
    """Features of all own items at events that repeat one, where keep[event]; gives (examples, pairs) found.

    Example e has the pairs starts[e] … starts[e + 1] − 1, chosen[e] the one that was taken; stops before `most` pairs.
    """
    slots, hands = np.full(known, -1, dtype=np.int32), np.empty(4)
    found = pairs = 0
    for n in range(len(users)):
        forget(state, slots)
        u = users[n]
        for t in range(offsets[u], offsets[u + 1]):
            slot, again = find_by(slots, state, items[t])
            if slot >= 0 and keep[t] and found < len(chosen) and pairs + kept(state) <= most:
                now = times[t] if timed else times[t - 1]
                clock(now, hands)
                chosen[found] = pairs + slot
                for s in range(kept(state)):
                    repeat_features(state, s, now, hands, index[pairs], value[pairs])
                    pairs += 1
                found += 1
                starts[found] = pairs
            slots[items[t]] = take(state, slot, again, items[t], times[t])
    return found, pairs
