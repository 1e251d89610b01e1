"""u_t = SiLU(Σ_{j<W} w_j x_{t−j}), a causal convolution of each channel alone; compiled, forward and backward.

A range of channels is one thread's, so that no sum crosses threads. Channels are counted with unsigned integers: a
signed index might be negative and count from the end, and a loop that must ask does not vectorise.
"""

from inspect import unwrap
from typing import Any

import numpy as np

from prism.ops.cpu.compiling import inner, kernel, overload
from prism.ops.cpu.math import sigmoid

BLOCK = 16  # tokens of the backward that are in cache together


def taps(w: Any, x: Any, t: Any, i: Any, js: Any) -> Any:
    """Σ_j w[|j|, i] · x[t + j, i] over the tuple js, written out for its length."""
    raise NotImplementedError("compiled code only")


@overload(taps)
def _taps(w, x, t, i, js):  # type: ignore[no-untyped-def]
    def last(w, x, t, i, js):  # type: ignore[no-untyped-def]
        return w[abs(js[0]), i] * x[t + js[0], i]

    def code(w, x, t, i, js):  # type: ignore[no-untyped-def]
        return w[abs(js[0]), i] * x[t + js[0], i] + taps(w, x, t, i, js[1:])

    return unwrap(last if len(js) == 1 else code)


@inner
def _copy(to, row, a, source, begin, end):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        to[row, i] = a[source, i]


@inner
def _begin(seen, x, history, start, stop, begin, end):  # type: ignore[no-untyped-def]
    """The history and the first tokens of a sequence, W − 1 of each at most, one after the other."""
    past = history.shape[0]
    for j in range(past):
        _copy(seen, j, history, j, begin, end)
        if start + j < stop:
            _copy(seen, past + j, x, start + j, begin, end)


@kernel
def conv_forward(x, w, history, bounds, js, u, first, last):  # type: ignore[no-untyped-def]
    """u for channels first, …, last − 1; x, u [T, D], w [W, D], history [N, W−1, D], js = (0, −1, …, 1 − W)."""
    past, begin, end = w.shape[0] - 1, np.uint64(first), np.uint64(last)
    seen = np.empty((2 * past, w.shape[1]), x.dtype)
    for n in range(bounds.shape[0] - 1):
        _begin(seen, x, history[n], bounds[n], bounds[n + 1], begin, end)
        inside = min(bounds[n] + past, bounds[n + 1])
        for t in range(bounds[n], inside):
            for i in range(begin, end):
                a = taps(w, seen, t - bounds[n] + past, i, js)
                u[t, i] = a * sigmoid(a)
        for t in range(inside, bounds[n + 1]):
            for i in range(begin, end):
                a = taps(w, x, t, i, js)
                u[t, i] = a * sigmoid(a)


@inner
def _make_room(da, length, begin, end):  # type: ignore[no-untyped-def]
    """Moves the first W − 1 rows, those of the tokens after the block to come, behind its `length` rows."""
    for row in range(da.shape[0] - BLOCK - 1, -1, -1):  # the last one first: old and new places may overlap
        _copy(da, length + row, da, row, begin, end)


@inner
def _token_back(x, t, w, js, du, da, row, dw, begin, end):  # type: ignore[no-untyped-def]
    """da = dSiLU(a_t) into its row, and what it adds to dw."""
    one = w.dtype.type(1)
    for i in range(begin, end):
        a = taps(w, x, t, i, js)
        s = sigmoid(a)
        da[row, i] = du[i] * (s * (one + a * (one - s)))
    for j in range(w.shape[0]):
        for i in range(begin, end):
            dw[j, i] += da[row, i] * x[t - j, i]


@kernel
def conv_backward(x, w, history, bounds, js, js_back, du, dx, dw, dhistory, first, last):  # type: ignore[no-untyped-def]
    """dx, dw and dhistory for channels first, …, last − 1, a block of tokens at a time; js_back = (0, 1, …, W − 1)."""
    past, begin, end = w.shape[0] - 1, np.uint64(first), np.uint64(last)
    seen, da = np.empty((2 * past, w.shape[1]), x.dtype), np.empty((BLOCK + past, w.shape[1]), x.dtype)
    for j in range(w.shape[0]):
        for i in range(begin, end):
            dw[j, i] = 0
    for n in range(bounds.shape[0] - 1):
        start, stop = bounds[n], bounds[n + 1]
        _begin(seen, x, history[n], start, stop, begin, end)
        for row in range(past):  # no token comes after the last
            for i in range(begin, end):
                da[row, i] = 0
        for block in range((stop - start + BLOCK - 1) // BLOCK - 1, -1, -1):
            s = start + block * BLOCK
            e = min(s + BLOCK, stop)
            _make_room(da, e - s, begin, end)
            for t in range(s, e):
                if t - start < past:
                    _token_back(seen, t - start + past, w, js, du[t], da, t - s, dw, begin, end)
                else:
                    _token_back(x, t, w, js, du[t], da, t - s, dw, begin, end)
            for t in range(s, e):
                for i in range(begin, end):
                    dx[t, i] = taps(w, da, t - s, i, js_back)
        for row in range(past):
            for i in range(begin, end):
                dhistory[n, row, i] = 0
            for j in range(past - row, past + 1):
                for i in range(begin, end):
                    dhistory[n, row, i] += w[j, i] * da[row + j - past, i]
