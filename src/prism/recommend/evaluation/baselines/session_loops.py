"""The loops of session kNN: sessions with an item in common, the most similar of them, their votes."""

import numpy as np

from prism.ops.cpu.compiling import loop
from prism.recommend.evaluation.baselines.neighbours import largest


@loop
def score_sessions(scores, part, queries, sessions, index, near, most, fade):  # type: ignore[no-untyped-def]
    """Adds to scores[q] what the sessions nearest to query q vote for, for part[0] ≤ q < part[1].

    Args:
        scores: [queries, candidates].
        part: The first query and one past the last.
        queries: (begins, items, weights, asked): events begins[q] … begins[q + 1] − 1 are q's, oldest first.
        sessions: (limits, events, ends, scale): training's sessions, when each ended, what its similarity is times.
        index: (starts, places, members): each item's sessions, latest first, and the item's last event in each.
        near: [2 · reach + 1]: weights by place relative to the common item.
        most: (sessions that vote, sessions looked at for each item).
        fade: Halvings of a session's weight per second.
    """
    begins, items, weights, asked = queries
    limits, events, ends, scale = sessions
    starts, places, members = index
    reach = len(near) // 2
    n = len(ends)
    similarity = np.zeros(n, dtype=np.float32)
    match = np.zeros(n, dtype=np.int64)
    touched = np.empty(n, dtype=np.int64)
    values = np.empty(n, dtype=np.float32)
    used = np.full(scores.shape[1], -1, dtype=np.int64)
    best = np.zeros(scores.shape[1], dtype=np.float32)
    for q in range(part[0], part[1]):
        size = 0
        for a in range(begins[q + 1] - 1, begins[q] - 1, -1):  # the latest first: its place is the match
            j = items[a]
            if used[j] == q:
                continue
            used[j] = q
            for b in range(starts[j], min(starts[j] + most[1], starts[j + 1])):
                s = members[b]
                if similarity[s] == 0:
                    touched[size] = s
                    size += 1
                    match[s] = places[b]
                similarity[s] += weights[a]
        for a in range(size):
            s = touched[a]
            values[a] = similarity[s] * scale[s]
            if fade > 0:
                values[a] *= 0.5 ** (max(asked[q] - ends[s], 0) * fade)
            similarity[s] = 0
        for a in largest(values[:size], most[0]):
            s = touched[a]
            first, last = max(limits[s], match[s] - reach), min(limits[s + 1], match[s] + reach + 1)
            for b in range(first, last):
                best[events[b]] = max(best[events[b]], near[b - match[s] + reach])
            for b in range(first, last):  # an item once, at the best of its places
                scores[q, events[b]] += values[a] * best[events[b]]
                best[events[b]] = 0
