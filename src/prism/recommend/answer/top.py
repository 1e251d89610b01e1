"""The k best of each row of scores in one compiled pass: a catalogue is read once; ties go to the first item."""

import numpy as np

from prism.ops.cpu.compiling import loop


@loop
def _worse(score, code, other, its):  # type: ignore[no-untyped-def]
    return score < other or (score == other and code > its)


@loop
def _sink(scores, codes, at, size):  # type: ignore[no-untyped-def]
    """Puts the entry at `at` of a heap, whose root is the worst, in its place."""
    score, code = scores[at], codes[at]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _worse(scores[child + 1], codes[child + 1], scores[child], codes[child]):
            child += 1
        if not _worse(scores[child], codes[child], score, code):
            break
        scores[at], codes[at] = scores[child], codes[child]
        at = child
    scores[at], codes[at] = score, code


@loop
def _top_of_row(row, allowed, scores, codes):  # type: ignore[no-untyped-def]
    k = len(codes)
    for i in range(k):
        scores[i], codes[i] = row[i] if allowed[i] else -np.inf, i
    for at in range(k // 2 - 1, -1, -1):
        _sink(scores, codes, at, k)
    for i in range(k, len(row)):
        if row[i] > scores[0] and allowed[i]:
            scores[0], codes[0] = row[i], i
            _sink(scores, codes, 0, k)
    for size in range(k - 1, 0, -1):  # the worst goes last, and the heap is one smaller
        scores[0], scores[size] = scores[size], scores[0]
        codes[0], codes[size] = codes[size], codes[0]
        _sink(scores, codes, 0, size)


@loop
def top(rows, allowed, gone_rows, gone_items, scores, codes):  # type: ignore[no-untyped-def]
    """Fills scores, codes [N, k], best first, −∞ where a row has fewer; whether all of `rows` [N, I] was finite.

    Items that are not `allowed` [I] are left out, and so is gone_items[n] of row gone_rows[n]: `rows` has −∞ there
    for a while, and is in the end as it was.
    """
    for n in range(rows.shape[0]):
        wrong = 0
        for i in range(rows.shape[1]):
            wrong += 0 if abs(rows[n, i]) < np.inf else 1
        if wrong:
            return False
    kept = np.empty(len(gone_rows), rows.dtype)
    for n in range(len(gone_rows)):
        kept[n] = rows[gone_rows[n], gone_items[n]]
        rows[gone_rows[n], gone_items[n]] = -np.inf
    for n in range(rows.shape[0]):
        _top_of_row(rows[n], allowed, scores[n], codes[n])
    for n in range(len(gone_rows) - 1, -1, -1):
        rows[gone_rows[n], gone_items[n]] = kept[n]
    return True
