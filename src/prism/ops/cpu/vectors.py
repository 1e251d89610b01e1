"""One vector at a time, for the kernels of one token: linear maps, norms, the short convolution."""

import math

from prism.ops.cpu.compiling import inner, inner_sum
from prism.ops.cpu.math import sigmoid


@inner
def linear(x, w, y, E):  # type: ignore[no-untyped-def]
    """y = x w for the first E outputs, four rows of w at a time."""
    D = w.shape[0]
    for j in range(E):
        y[j] = 0
    i = 0
    while i + 4 <= D:
        a, b, c, d = x[i], x[i + 1], x[i + 2], x[i + 3]
        wa, wb, wc, wd = w[i], w[i + 1], w[i + 2], w[i + 3]
        for j in range(E):
            y[j] = y[j] + a * wa[j] + b * wb[j] + c * wc[j] + d * wd[j]
        i += 4
    while i < D:
        a, wa = x[i], w[i]
        for j in range(E):
            y[j] = y[j] + a * wa[j]
        i += 1


@inner_sum
def square_sum(x, begin, end):  # type: ignore[no-untyped-def]
    total = x.dtype.type(0)
    for i in range(begin, end):
        total += x[i] * x[i]
    return total


@inner_sum
def total(x, n):  # type: ignore[no-untyped-def]
    total = x.dtype.type(0)
    for i in range(n):
        total += x[i]
    return total


@inner
def rms_norm(x, begin, end, weight, y):  # type: ignore[no-untyped-def]
    """y = x / √(mean x² + 10⁻⁶) ⊙ weight, for one vector inside another."""
    n = end - begin
    factor = 1 / math.sqrt(square_sum(x, begin, end) / n + 1e-6)
    scale = x.dtype.type(factor)
    for i in range(n):
        y[begin + i] = x[begin + i] * scale * weight[i]


@inner
def layer_norm(x, affine):  # type: ignore[no-untyped-def]
    """In place: (x − mean) / √(variance + 10⁻⁵) ⊙ scale + shift."""
    n = x.shape[0]
    mean = x.dtype.type(total(x, n) / n)
    for i in range(n):
        x[i] -= mean
    scale = x.dtype.type(1 / math.sqrt(square_sum(x, 0, n) / n + 1e-5))
    for i in range(n):
        x[i] = x[i] * scale * affine[0, i] + affine[1, i]


@inner
def unit(x, begin, n):  # type: ignore[no-untyped-def]
    """In place: x / max(‖x‖, 10⁻⁶), for one vector inside another."""
    factor = x.dtype.type(1 / max(math.sqrt(square_sum(x, begin, begin + n)), 1e-6))
    for i in range(begin, begin + n):
        x[i] *= factor


@inner
def conv_silu(x, before, after, weight, y):  # type: ignore[no-untyped-def]
    """y = SiLU(Σ_w weight_w ⊙ seen_w) over the last inputs and x; `after` holds the last inputs including x."""
    past, D = before.shape
    for j in range(D):
        y[j] = x[j] * weight[past, j]
    for w in range(past):
        for j in range(D):
            y[j] = y[j] + before[w, j] * weight[w, j]
    for w in range(past - 1):
        for j in range(D):
            after[w, j] = before[w + 1, j]
    if past:
        for j in range(D):
            after[past - 1, j] = x[j]
    for j in range(D):
        y[j] = y[j] * sigmoid(y[j])
