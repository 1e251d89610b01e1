"""The parts around the recurrence that work on each token alone or on a few neighbours; compiled, one pass each.

Inner loops run over contiguous channels, so that they vectorise; `begin` and `end` bound what one thread does.
"""

import numpy as np

from prism.ops.cpu.compiling import kernel
from prism.ops.cpu.math import normal
from prism.ops.cpu.shared import dot


@kernel
def refine_forward(r, p, delta, begin, end):  # type: ignore[no-untyped-def]
    """δ^l = GELU(p^l ⊙ r^l), r^{l+1} = r^l − δ^l, for rows begin, …, end − 1; r [M, V], p and δ [M, L, V]."""
    L, V = p.shape[1:]
    left = r[0].copy()
    for m in range(begin, end):
        for i in range(V):
            left[i] = r[m, i]
        for l in range(L):
            for i in range(V):
                a = p[m, l, i] * left[i]
                delta[m, l, i] = a * normal(a)[0]
            for i in range(V):
                left[i] -= delta[m, l, i]


@kernel
def refine_backward(r, p, delta, ddelta, dr, dp, begin, end):  # type: ignore[no-untyped-def]
    """dr [M, V] and dp [M, L, V]; the residuals are computed anew from r and δ."""
    L, V = p.shape[1:]
    left = r[0].copy()
    for m in range(begin, end):
        for i in range(V):
            dr[m, i] = 0
        for l in range(L - 1, -1, -1):
            for i in range(V):
                left[i] = r[m, i]
            for j in range(l):
                for i in range(V):
                    left[i] -= delta[m, j, i]
            for i in range(V):
                a = p[m, l, i] * left[i]
                below, density = normal(a)
                da = (ddelta[m, l, i] - dr[m, i]) * (below + a * density)
                dp[m, l, i] = da * left[i]
                dr[m, i] += da * p[m, l, i]


@kernel
def normalize_forward(x, eps, y, begin, end):  # type: ignore[no-untyped-def]
    """y = x / max(‖x‖, eps) for rows begin, …, end − 1."""
    for m in range(begin, end):
        factor = 1 / max(dot(x, m, x, m) ** 0.5, eps)
        for i in range(x.shape[1]):
            y[m, i] = x[m, i] * factor


@kernel
def normalize_backward(x, eps, dy, dx, begin, end):  # type: ignore[no-untyped-def]
    """dx = (dy − y ⟨y, dy⟩) / ‖x‖, or dy / eps where the norm was too small to divide by."""
    zero = x.dtype.type(0)
    for m in range(begin, end):
        norm = dot(x, m, x, m) ** 0.5
        factor = 1 / max(norm, eps)
        along = dot(x, m, dy, m) * factor * factor if norm > eps else zero
        for i in range(x.shape[1]):
            dx[m, i] = (dy[m, i] - x[m, i] * along) * factor


_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_A, _B, _C, _HALF = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@kernel
def dropout(x, seed, limit, scale, y, begin, end):  # type: ignore[no-untyped-def]
    """y = scale · x where 32 bits mixed from (seed, place) are at least `limit`, else 0; for places begin … end − 1."""
    zero = x.dtype.type(0)
    for i in range(begin, end):
        z = seed + np.uint64(i) * _STEP  # SplitMix64
        z = (z ^ (z >> _A)) * _FIRST
        z = (z ^ (z >> _B)) * _SECOND
        z = (z ^ (z >> _C)) >> _HALF
        y[i] = x[i] * scale if z >= limit else zero
