"""The repeat expert in compiled loops: how likely each of a user's own items is to be taken again, at one moment."""

import numpy as np

from prism.ops.cpu.compiling import loop
from prism.recommend.model.experts.user_state import DAY, EVENTS, LAST_SLOT, WEEK, find_by, forget, kept, take

AGES, COUNTS, GAPS = 24, 16, 64
# Where each part of the weights begins.
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
