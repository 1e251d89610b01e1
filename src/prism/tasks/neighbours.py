"""Cosine neighbours of items by users in common, and their sum over histories, in compiled loops."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Unwrapped first: the tests' type checks wrap every function, and numba cannot see through them."""
    plain = inspect.unwrap(function)
    try:
        compiled: Callable[..., Any] = njit(plain, cache=True, nogil=True)
    except RuntimeError:  # "cannot cache function": neither the package nor the home folder can be written
        compiled = njit(plain, nogil=True)
    return compiled


@_compiled
def _insert(near, similarity, item, value):  # type: ignore[no-untyped-def]
    """Keeps the k largest in falling order."""
    place = len(near) - 1
    if value <= similarity[place]:
        return
    while place > 0 and similarity[place - 1] < value:
        similarity[place] = similarity[place - 1]
        near[place] = near[place - 1]
        place -= 1
    similarity[place] = value
    near[place] = item


@_compiled
def nearest(user_starts, user_items, item_starts, item_users, k):  # type: ignore[no-untyped-def]
    """(near, similarity), both [items, k]: the nearest by cosine, nearest first; -1 and 0 where there are fewer.

    A user's distinct items are `user_items[user_starts[u]:user_starts[u + 1]]`, an item's users likewise.
    """
    n = len(item_starts) - 1
    near = np.full((n, k), -1, dtype=np.int32)
    similarity = np.zeros((n, k), dtype=np.float32)
    common = np.zeros(n, dtype=np.int32)
    touched = np.empty(n, dtype=np.int32)
    for i in range(n):
        size = 0
        for a in range(item_starts[i], item_starts[i + 1]):
            u = item_users[a]
            for b in range(user_starts[u], user_starts[u + 1]):
                j = user_items[b]
                if common[j] == 0:
                    touched[size] = j
                    size += 1
                common[j] += 1
        own = item_starts[i + 1] - item_starts[i]
        for a in range(size):
            j = touched[a]
            value = common[j] / np.sqrt(float(own) * (item_starts[j + 1] - item_starts[j]))
            common[j] = 0
            if j != i:
                _insert(near[i], similarity[i], j, value)
    return near, similarity


@_compiled
def spread(scores, query, items, weight, near, similarity):  # type: ignore[no-untyped-def]
    """scores[query, j] += weight · similarity(item, j) over history events and neighbours j of their items."""
    for a in range(len(query)):
        for b in range(near.shape[1]):
            j = near[items[a], b]
            if j < 0:
                break
            scores[query[a], j] += weight[a] * similarity[items[a], b]
