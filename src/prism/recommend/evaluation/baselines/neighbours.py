"""Cosine neighbours of items by users in common, and their sum over histories, in compiled loops."""

import numpy as np

from prism.ops.cpu.compiling import loop


@loop
def largest(values, k):  # type: ignore[no-untyped-def]
    """Places of the k largest, largest first; of equal ones the first."""
    if len(values) <= k:
        return np.argsort(-values, kind="mergesort")
    least = np.partition(values, len(values) - k)[len(values) - k]
    chosen = np.empty(k, dtype=np.int64)
    size, spare = 0, k - np.sum(values > least)
    for a in range(len(values)):
        if values[a] > least or (values[a] == least and spare > 0):
            spare -= values[a] == least
            chosen[size] = a
            size += 1
    return chosen[np.argsort(-values[chosen], kind="mergesort")]


@loop
def nearest(user_starts, user_items, item_starts, item_users, k):  # type: ignore[no-untyped-def]
    """(near, similarity), both [items, k]: the nearest by cosine, nearest first; -1 and 0 where there are fewer.

    A user's distinct items are `user_items[user_starts[u]:user_starts[u + 1]]`, an item's users likewise.
    """
    n = len(item_starts) - 1
    near = np.full((n, k), -1, dtype=np.int32)
    similarity = np.zeros((n, k), dtype=np.float32)
    common = np.zeros(n, dtype=np.int32)
    touched = np.empty(n, dtype=np.int32)
    values = np.empty(n, dtype=np.float32)
    root = np.sqrt((item_starts[1:] - item_starts[:-1]).astype(np.float64))
    for i in range(n):
        size = 0
        for a in range(item_starts[i], item_starts[i + 1]):
            u = item_users[a]
            for b in range(user_starts[u], user_starts[u + 1]):
                j = user_items[b]
                if j != i and common[j] == 0:
                    touched[size] = j
                    size += 1
                common[j] += 1
        for a in range(size):
            values[a] = common[touched[a]] / (root[i] * root[touched[a]])
            common[touched[a]] = 0
        common[i] = 0
        for place, a in enumerate(largest(values[:size], k)):
            near[i, place] = touched[a]
            similarity[i, place] = values[a]
    return near, similarity


@loop
def spread(scores, query, items, weight, near, similarity):  # type: ignore[no-untyped-def]
    """scores[query, j] += weight · similarity(item, j) over history events and neighbours j of their items."""
    for a in range(len(query)):
        for b in range(near.shape[1]):
            j = near[items[a], b]
            if j < 0:
                break
            scores[query[a], j] += weight[a] * similarity[items[a], b]
