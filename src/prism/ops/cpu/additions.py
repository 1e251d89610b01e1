"""What is added to a block of logits, compiled: sparse entries and rows of a bank, each times a weight of its token."""

import numpy as np

from prism.ops.cpu.compiling import kernel, kernel_sum


@kernel
def add_entries(logits, first, starts, items, kinds, values, bank, rows, weights):  # type: ignore[no-untyped-def]
    """logits[n] += Σ of token first + n; weights has the entries' kinds first, then one column per row of the bank."""
    dense = weights.shape[1] - rows.shape[1]
    for n in range(len(logits)):
        t = first + n
        for f in range(rows.shape[1]):
            weight, row = weights[t, dense + f], bank[rows[t, f]]
            if weight != 0:
                for i in range(logits.shape[1]):
                    logits[n, i] += weight * row[i]
        for e in range(starts[t], starts[t + 1]):
            logits[n, items[e]] += weights[t, kinds[e]] * values[e]


@kernel_sum
def entry_gradients(p, mass, first, starts, items, kinds, values, bank, rows, targets, found):  # type: ignore[no-untyped-def]
    """found[n] = Σ_i (p_i / mass − [i = target]) f(i), for each weight of token first + n."""
    dense = found.shape[1] - rows.shape[1]
    for n in range(len(p)):
        t = first + n
        target, scale = targets[t], 1 / mass[n]
        for e in range(starts[t], starts[t + 1]):
            found[n, kinds[e]] += p[n, items[e]] * scale * values[e]
            if items[e] == target:
                found[n, kinds[e]] -= values[e]
        for f in range(rows.shape[1]):
            row = bank[rows[t, f]]
            expected = np.zeros(1, dtype=p.dtype)[0]
            for i in range(p.shape[1]):
                expected += p[n, i] * row[i]
            found[n, dense + f] = expected * scale - row[target]
