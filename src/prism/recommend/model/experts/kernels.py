"""What the simple experts see and say of users, in compiled loops: of training events, queries and live users."""

import numpy as np

from prism.ops.cpu.compiling import loop
from prism.recommend.model.experts.entries import ENTRIES, entries, most_entries
from prism.recommend.model.experts.gates import weigh
from prism.recommend.model.experts.habits import repeat_shares
from prism.recommend.model.experts.popular import period_of
from prism.recommend.model.experts.rows import pair_of
from prism.recommend.model.experts.user_state import (
    DISTINCT,
    EVENTS,
    LAST_SLOT,
    LAST_TIME,
    VISIT,
    find_by,
    forget,
    take,
)

# Rows of the bank that are read at a moment, the last kinds of features.
ROWS = 3
CONTEXT = 15


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
        pair = pair_of(tables.pair, last, state.recent[1])
        if pair >= 0:
            context[13] = np.log1p(tables.pair.rows.totals[pair]) / 4
            context[14] = tables.pair.rows.tops[pair]


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
def add_live(out, x, gates, state, now, tables, repeats):  # type: ignore[no-untyped-def]
    """out [items] += Σ weight · feature of one user now, whose features are x [D], with memory of its own."""
    known = len(out)
    most = most_entries(state, known)
    own, context, rows = np.empty(len(state.items)), np.empty(CONTEXT, dtype=np.float32), np.empty(ROWS, dtype=np.int64)
    weights = np.empty(ENTRIES + ROWS, dtype=x.dtype)
    look(state, now, tables, repeats, own, context, rows)
    weigh(x, context, gates, weights)
    items, kinds = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int8)
    add_moment(out, weights, state, rows, tables, own, np.zeros(known), items, kinds, np.empty(most, dtype=np.float32))


@loop
def window_entries(  # type: ignore[no-untyped-def]
    items,
    times,
    begin,
    reached,
    first,
    last,
    state,
    slots,
    own,
    sums,
    tables,
    weights,
    novel,
    timed,
    contexts,
    rows,
    starts,
):
    """Features of the events first … last − 1 of a history that begins at `begin`, each from the events before it.

    The state is that before the event `reached`, of which slots tell too. Fills contexts, rows and starts; gives
    (items, kinds, values). Where only items that are new to the user are asked for (`novel`), an event that is none
    has no features: it teaches the model alone.
    """
    known, zeros = len(sums), len(tables.bank) - 1
    columns = np.empty(1 << 14, dtype=np.int32)
    kinds = np.empty(1 << 14, dtype=np.int8)
    values = np.empty(1 << 14, dtype=np.float32)
    at = 0
    for t in range(reached, last):
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
def _reach(state, slots, offsets, items, times, users, positions, q, known, timed):  # type: ignore[no-untyped-def]
    """Brings the state of the query before to that of query q; gives the time at which it is asked.

    Queries come by user and position. Items that the model does not know are passed over.
    """
    t = offsets[users[q]]
    if q > 0 and users[q] == users[q - 1]:
        t = positions[q - 1]
    else:
        forget(state, slots)
    for e in range(t, positions[q]):
        if items[e] < known:
            slot, again = find_by(slots, state, items[e])
            slots[items[e]] = take(state, slot, again, items[e], times[e])
    return times[positions[q]] if timed or state.facts[EVENTS] == 0 else state.facts[LAST_TIME]


@loop
def query_contexts(offsets, items, times, users, positions, known, state, tables, weights, timed, contexts):  # type: ignore[no-untyped-def]
    """What the gates look at, for every query, in order of user and position."""
    slots = np.full(known, -1, dtype=np.int32)
    own, rows = np.empty(len(state.items)), np.empty(ROWS, dtype=np.int64)
    for q in range(len(users)):
        now = _reach(state, slots, offsets, items, times, users, positions, q, known, timed)
        look(state, now, tables, weights, own, contexts[q], rows)


@loop
def add_to_queries(out, gates, offsets, items, times, users, positions, known, state, tables, weights, timed):  # type: ignore[no-untyped-def]
    """out[q] += Σ weight · feature, for every query, in order of user and position."""
    slots = np.full(known, -1, dtype=np.int32)
    own, rows, context = np.empty(len(state.items)), np.empty(ROWS, dtype=np.int64), np.empty(CONTEXT, dtype=np.float32)
    most = len(state.items) + 6 * known + 1
    columns, kinds = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int8)
    values, sums = np.empty(most, dtype=np.float32), np.zeros(known)
    for q in range(len(users)):
        now = _reach(state, slots, offsets, items, times, users, positions, q, known, timed)
        look(state, now, tables, weights, own, context, rows)
        add_moment(out[q], gates[q], state, rows, tables, own, sums, columns, kinds, values)
