"""The simple experts' distributions, in compiled loops: from a user's state, for one moment."""

import numpy as np

from prism.ops.cpu.compiling import loop
from prism.recommend.model.experts.tables import period_of
from prism.recommend.model.experts.user_state import DAY, DISTINCT, EVENTS, LAST_SLOT, LAST_TIME, WEEK, take

REPEAT, NEXT, NEAR, POPULAR, LATELY = range(5)
COUNT = 5
CONTEXT = 12
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


@loop
def bucket(number, buckets):  # type: ignore[no-untyped-def]
    """⌊2 log₂(1 + number)⌋, at most the last."""
    return min(int(2 * np.log2(1.0 + max(number, 0))), buckets - 1)


@loop
def repeat_features(state, slot, now, index, value):  # type: ignore[no-untyped-def]
    """index [3]: the buckets of age, count and time since; value [3]: time of day, of week, what followed before."""
    count = state.counts[slot]
    index[0] = bucket(state.facts[EVENTS] - 1 - state.places[slot], AGES)
    index[1] = OF_COUNT + bucket(count - 1, COUNTS)
    index[2] = OF_GAP + bucket(now - state.times[slot], GAPS)
    day, week = 2 * np.pi * (now % DAY) / DAY, 2 * np.pi * (now % WEEK) / WEEK
    value[0] = (state.rhythm[slot, 0] * np.cos(day) + state.rhythm[slot, 1] * np.sin(day)) / count
    value[1] = (state.rhythm[slot, 2] * np.cos(week) + state.rhythm[slot, 3] * np.sin(week)) / count
    value[2] = 1.0 if state.after[state.facts[LAST_SLOT]] == slot else 0.0


@loop
def repeat_shares(state, now, weights, out):  # type: ignore[no-untyped-def]
    """out[slot]: the distribution over the user's own items; gives its largest share (0: no items)."""
    n = state.facts[DISTINCT]
    if n == 0:
        return 0.0
    index, value = np.empty(3, dtype=np.int64), np.empty(3)
    top = -np.inf
    for s in range(n):
        repeat_features(state, s, now, index, value)
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
def share_of(rows, row, column):  # type: ignore[no-untyped-def]
    """One entry of a table."""
    low, high = rows.starts[row], rows.starts[row + 1]
    at = low + np.searchsorted(rows.columns[low:high], column)
    return rows.shares[at] if at < high and rows.columns[at] == column else 0.0


@loop
def unseen_mass(rows, row, slots):  # type: ignore[no-untyped-def]
    """The share of a row that lies on items without a slot."""
    total = 0.0
    for a in range(rows.starts[row], rows.starts[row + 1]):
        if slots[rows.columns[a]] < 0:
            total += rows.shares[a]
    return total


@loop
def neighbour_total(state, rows, ages, slots, novel):  # type: ignore[no-untyped-def]
    """What the latest items' rows weigh together; 0: there is no distribution."""
    total = 0.0
    for a in range(len(ages)):
        j = state.recent[a]
        if j < 0:
            break
        if ages[a] > 0 and rows.totals[j] > 0:
            total += ages[a] * (unseen_mass(rows, j, slots) if novel else 1.0)
    return total


@loop
def neighbour_share(state, rows, ages, total, item):  # type: ignore[no-untyped-def]
    """The share of one item."""
    found = 0.0
    for a in range(len(ages)):
        j = state.recent[a]
        if j < 0:
            break
        if ages[a] > 0 and rows.totals[j] > 0:
            found += ages[a] * share_of(rows, j, item)
    return found / total


@loop
def spread_neighbours(out, weight, state, rows, ages, slots, novel):  # type: ignore[no-untyped-def]
    """out += weight · the distribution of the latest items' neighbours."""
    for a in range(len(ages)):
        j = state.recent[a]
        if j < 0:
            break
        w = weight * ages[a]
        if w > 0 and rows.totals[j] > 0:
            for b in range(rows.starts[j], rows.starts[j + 1]):
                i = rows.columns[b]
                if not novel or slots[i] < 0:
                    out[i] += w * rows.shares[b]


@loop
def unseen_of(state, shares):  # type: ignore[no-untyped-def]
    """What a distribution gives to items that the user has not taken."""
    seen = 0.0
    for s in range(state.facts[DISTINCT]):
        seen += shares[state.items[s]]
    return 1 - seen if seen < 1 - 1e-5 else 0.0  # all of it but for rounding: nothing is left to share


@loop
def look(state, now, tables, weights, slots, novel, own, context, masses):  # type: ignore[no-untyped-def]
    """Fills own [slots] (shares of the user's own items), context [CONTEXT] and masses [COUNT]; gives the period.

    A mass is what an expert's weights add up to: dividing by it makes them a distribution; 0: it has none.
    """
    facts = state.facts
    events, distinct = facts[EVENTS], facts[DISTINCT]
    top = repeat_shares(state, now, weights, own)
    period = period_of(tables.period_starts, now)
    masses[REPEAT] = 0.0 if novel or distinct == 0 else 1.0
    masses[NEXT] = neighbour_total(state, tables.next, tables.ages[0], slots, novel)
    masses[NEAR] = neighbour_total(state, tables.near, tables.ages[1], slots, novel)
    masses[POPULAR] = unseen_of(state, tables.popular) if novel else 1.0
    masses[LATELY] = 0.0 if period < 0 else (unseen_of(state, tables.recent[period]) if novel else 1.0)
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
    return period


@loop
def chance_of(state, item, period, tables, slots, novel, own, masses, out):  # type: ignore[no-untyped-def]
    """out [COUNT]: each expert's probability of one item."""
    out[:] = 0
    slot = slots[item]
    if novel and slot >= 0:
        return
    if masses[REPEAT] > 0 and slot >= 0:
        out[REPEAT] = own[slot]
    if masses[NEXT] > 0:
        out[NEXT] = neighbour_share(state, tables.next, tables.ages[0], masses[NEXT], item)
    if masses[NEAR] > 0:
        out[NEAR] = neighbour_share(state, tables.near, tables.ages[1], masses[NEAR], item)
    if masses[POPULAR] > 0:
        out[POPULAR] = tables.popular[item] / masses[POPULAR]
    if masses[LATELY] > 0:
        out[LATELY] = tables.recent[period, item] / masses[LATELY]


@loop
def add_experts(out, gates, state, period, tables, slots, novel, own, masses):  # type: ignore[no-untyped-def]
    """out [items] += Σ gate · expert's distribution."""
    if gates[REPEAT] > 0 and masses[REPEAT] > 0:
        for s in range(state.facts[DISTINCT]):
            out[state.items[s]] += gates[REPEAT] * own[s]
    if gates[NEXT] > 0 and masses[NEXT] > 0:
        spread_neighbours(out, gates[NEXT] / masses[NEXT], state, tables.next, tables.ages[0], slots, novel)
    if gates[NEAR] > 0 and masses[NEAR] > 0:
        spread_neighbours(out, gates[NEAR] / masses[NEAR], state, tables.near, tables.ages[1], slots, novel)
    popular = gates[POPULAR] / masses[POPULAR] if masses[POPULAR] > 0 else 0.0
    lately = gates[LATELY] / masses[LATELY] if masses[LATELY] > 0 else 0.0
    for i in range(len(out)):
        out[i] += popular * tables.popular[i] + (lately * tables.recent[period, i] if lately > 0 else 0.0)


@loop
def forget(state, slots):  # type: ignore[no-untyped-def]
    """Back to a user without events."""
    for s in range(state.facts[DISTINCT]):
        slots[state.items[s]] = -1
    state.facts[:] = 0
    state.facts[LAST_SLOT] = -1
    state.recent[:] = -1
    state.habit[:] = 0


@loop
def training_chances(offsets, items, times, users, state, tables, weights, novel, timed, contexts, masses, chances):  # type: ignore[no-untyped-def]
    """For every event of `users`, from the events before it: context, masses and each expert's probability of it."""
    slots = np.full(len(tables.popular), -1, dtype=np.int32)
    own = np.empty(len(state.items))
    for n in range(len(users)):
        forget(state, slots)
        u = users[n]
        for t in range(offsets[u], offsets[u + 1]):
            now = times[t] if timed or t == offsets[u] else times[t - 1]
            period = look(state, now, tables, weights, slots, novel, own, contexts[t], masses[t])
            chance_of(state, items[t], period, tables, slots, novel, own, masses[t], chances[t])
            if novel and slots[items[t]] >= 0:  # never asked about: it teaches the model, not the gates
                masses[t] = 0
            slots[items[t]] = take(state, slots[items[t]], items[t], times[t])


@loop
def query_contexts(  # type: ignore[no-untyped-def]
    offsets, items, times, users, positions, known, state, tables, weights, novel, timed, contexts, masses
):
    """For every query, in order of user and position: context and masses."""
    slots = np.full(known, -1, dtype=np.int32)
    own = np.empty(len(state.items))
    before, t = -1, 0
    for q in range(len(users)):
        if users[q] != before:
            forget(state, slots)
            before, t = users[q], offsets[users[q]]
        while t < positions[q]:
            if items[t] < known:
                slots[items[t]] = take(state, slots[items[t]], items[t], times[t])
            t += 1
        now = times[positions[q]] if timed or state.facts[EVENTS] == 0 else state.facts[LAST_TIME]
        look(state, now, tables, weights, slots, novel, own, contexts[q], masses[q])


@loop
def add_to_queries(out, gates, offsets, items, times, users, positions, known, state, tables, weights, novel, timed):  # type: ignore[no-untyped-def]
    """out[q] += Σ gate · expert's distribution, for every query, in order of user and position."""
    slots = np.full(known, -1, dtype=np.int32)
    own = np.empty(len(state.items))
    context, masses = np.empty(CONTEXT, dtype=np.float32), np.empty(COUNT, dtype=np.float32)
    before, t = -1, 0
    for q in range(len(users)):
        if users[q] != before:
            forget(state, slots)
            before, t = users[q], offsets[users[q]]
        while t < positions[q]:
            if items[t] < known:
                slots[items[t]] = take(state, slots[items[t]], items[t], times[t])
            t += 1
        now = times[positions[q]] if timed or state.facts[EVENTS] == 0 else state.facts[LAST_TIME]
        period = look(state, now, tables, weights, slots, novel, own, context, masses)
        add_experts(out[q], gates[q], state, period, tables, slots, novel, own, masses)


@loop
def repeat_examples(offsets, items, times, users, state, known, timed, keep, most, starts, index, value, chosen):  # type: ignore[no-untyped-def]
    """Features of all own items at events that repeat one, where keep[event]; gives (examples, pairs) found.

    Example e has the pairs starts[e] … starts[e + 1] − 1, chosen[e] the one that was taken; stops before `most` pairs.
    """
    slots = np.full(known, -1, dtype=np.int32)
    found = pairs = 0
    for n in range(len(users)):
        forget(state, slots)
        u = users[n]
        for t in range(offsets[u], offsets[u + 1]):
            slot, distinct = slots[items[t]], state.facts[DISTINCT]
            if slot >= 0 and keep[t] and found < len(chosen) and pairs + distinct <= most:
                now = times[t] if timed else times[t - 1]
                chosen[found] = pairs + slot
                for s in range(distinct):
                    repeat_features(state, s, now, index[pairs], value[pairs])
                    pairs += 1
                found += 1
                starts[found] = pairs
            slots[items[t]] = take(state, slot, items[t], times[t])
    return found, pairs
