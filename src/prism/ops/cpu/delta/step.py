"""One token of the recurrence for a range of (sequence, head) pairs, compiled: for decoding."""

import math

from prism.ops.cpu.compiling import kernel_sum


@kernel_sum
def step_range(q, k, v, beta, log_alpha, erase, S, scale, o, S_next, begin, end):  # type: ignore[no-untyped-def]
    """o and S_next of pairs begin, …, end − 1; operands are [N·H, …], S is read row by row and only once.

    With an `erase` for each direction these erase in turn; with one, the first direction finds what the old row held.
    """
    L, K = k.shape[1:]
    each = erase.shape[1] > 1
    for n in range(begin, end):
        alpha = math.exp(log_alpha[n])
        for i in range(S.shape[1]):
            if each:
                for j in range(K):
                    S_next[n, i, j] = alpha * S[n, i, j]
            else:
                found = S.dtype.type(0)
                for j in range(K):
                    found += S[n, i, j] * k[n, 0, j]
                w = beta[n, 0] * v[n, 0, i] - alpha * erase[n, 0] * found
                for j in range(K):
                    S_next[n, i, j] = alpha * S[n, i, j] + w * k[n, 0, j]
            for l in range(0 if each else 1, L):
                w = beta[n, l] * v[n, l, i]
                if each:
                    found = S.dtype.type(0)
                    for j in range(K):
                        found += S_next[n, i, j] * k[n, l, j]
                    w -= erase[n, l] * found
                for j in range(K):
                    S_next[n, i, j] += w * k[n, l, j]
            read = S.dtype.type(0)
            for j in range(K):
                read += S_next[n, i, j] * q[n, j]
            o[n, i] = scale * read
