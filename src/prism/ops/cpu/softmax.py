"""A block of logits turned into e^{logit − top}, row by row while a row is in the first cache; compiled.

On the way there, what experts add: sparse entries and rows of a bank, each times a weight of its token; and on the way
back, while the row is still there, the gradients of these weights.
"""

import numpy as np

from prism.ops.cpu.compiling import inner_sum, kernel
from prism.ops.cpu.math import exponential

# Largest numbers kept apart, so that finding the largest of all vectorises: a comparison has no order to lose.
LANES = 32


@kernel
def normalise(logits, first, added, weights, targets, trained, losses, mass, gradients):  # type: ignore[no-untyped-def]
    """logits[n] of token first + n becomes e^{logit − top}, mass[n] their sum, losses[n] = −log p(target).

    `added` is (starts, items, kinds, values, bank, rows) as `Additions` has them; gradients [block, weights] are filled
    if `trained`.
    """
    tops = np.empty(LANES, dtype=logits.dtype)
    for n in range(len(logits)):
        t = first + n
        row, target = logits[n], targets[first + n]
        _add(row, t, added, weights)
        picked, top = row[target], _largest(row, tops)
        mass[n] = _exponentials(row, top)
        losses[n] = np.log(mass[n]) + top - picked
        if trained and gradients.shape[1]:
            _gradients(row, 1 / mass[n], t, target, added, gradients[n])


@inner_sum
def _largest(row, tops):  # type: ignore[no-untyped-def]
    whole = len(row) // LANES * LANES
    tops[:] = row[0]
    for a in range(0, whole, LANES):
        for j in range(LANES):
            tops[j] = row[a + j] if row[a + j] > tops[j] else tops[j]
    top = tops[0]
    for j in range(LANES):
        top = tops[j] if tops[j] > top else top
    for i in range(whole, len(row)):
        top = row[i] if row[i] > top else top
    return top


@inner_sum
def _exponentials(row, top):  # type: ignore[no-untyped-def]
    total = row.dtype.type(0)
    for i in range(len(row)):
        e = exponential(row[i] - top)
        row[i] = e
        total += e
    return total


@inner_sum
def _run(kinds, begin, end):  # type: ignore[no-untyped-def]
    """One past the entries from `begin` on that are of one kind."""
    at = begin + 1
    while at < end and kinds[at] == kinds[begin]:
        at += 1
    return at


@inner_sum
def _add(row, t, added, weights):  # type: ignore[no-untyped-def]
    starts, items, kinds, values, bank, rows = added
    dense = weights.shape[1] - rows.shape[1]
    for f in range(rows.shape[1]):
        weight, other = weights[t, dense + f], bank[rows[t, f]]
        if weight != 0:
            for i in range(len(row)):
                row[i] += weight * other[i]
    begin, last = starts[t], starts[t + 1]
    while begin < last:
        end, weight = _run(kinds, begin, last), weights[t, kinds[begin]]
        if weight != 0:
            for e in range(begin, end):
                row[items[e]] += weight * values[e]
        begin = end


@inner_sum
def _gradients(row, scale, t, target, added, found):  # type: ignore[no-untyped-def]
    """found = Σ_i (p_i · scale − [i = target]) f(i), for each weight of token t."""
    starts, items, kinds, values, bank, rows = added
    found[:] = 0
    begin, last = starts[t], starts[t + 1]
    while begin < last:
        end, expected, taken = _run(kinds, begin, last), row.dtype.type(0), row.dtype.type(0)
        for e in range(begin, end):
            expected += row[items[e]] * values[e]
            taken += values[e] if items[e] == target else 0
        found[kinds[begin]] += expected * scale - taken
        begin = end
    dense = len(found) - rows.shape[1]
    for f in range(rows.shape[1]):
        other, expected = bank[rows[t, f]], row.dtype.type(0)
        for i in range(len(row)):
            expected += row[i] * other[i]
        found[dense + f] = expected * scale - other[target]
