"""One token of the recurrence for a range of (sequence, head) pairs, compiled: for decoding."""

import math

from prism.ops.cpu.compiling import inner_sum, kernel_sum


@inner_sum
def _step_each(q, k, v, beta, alpha, erase, S, scale, o, S_next, n):  # type: ignore[no-untyped-def]
    """One pair whose directions all erase, one after the other."""
    L, K = k.shape[1:]
    for i in range(S.shape[1]):
        for j in range(K):
            S_next[n, i, j] = alpha * S[n, i, j]
        for l in range(L):
            found = S.dtype.type(0)
            for j in range(K):
                found += S_next[n, i, j] * k[n, l, j]
            w = beta[n, l] * v[n, l, i] - erase[n, l] * found
            for j in range(K):
                S_next[n, i, j] += w * k[n, l, j]
        read = S.dtype.type(0)
        for j in range(K):
            read += S_next[n, i, j] * q[n, j]
        o[n, i] = scale * read


@kernel_sum
def step_range(q, k, v, beta, log_alpha, erase, S, scale, o, S_next, begin, end):  # type: ignore[no-untyped-def]
    """o and S_next of pairs begin, …, end − 1; operands are [N·H, …], S is read row by row and only once."""
    L, K = k.shape[1:]
    for n in range(begin, end):
        alpha = math.exp(log_alpha[n])
        if erase.shape[1] > 1:
            _step_each(q, k, v, beta, alpha, erase, S, scale, o, S_next, n)
            continue
        for i in range(S.shape[1]):
            found = S.dtype.type(0)
            for j in range(K):
                found += S[n, i, j] * k[n, 0, j]
            first = beta[n, 0] * v[n, 0, i] - alpha * erase[n, 0] * found
            for j in range(K):
                S_next[n, i, j] = alpha * S[n, i, j] + first * k[n, 0, j]
            for l in range(1, L):
                w = beta[n, l] * v[n, l, i]
                for j in range(K):
                    S_next[n, i, j] += w * k[n, l, j]
            read = S.dtype.type(0)
            for j in range(K):
                read += S_next[n, i, j] * q[n, j]
            o[n, i] = scale * read
