"""u_t = SiLU(Σ_{j<W} w_j x_{t−j}), a causal convolution of each channel alone; with NORM, LayerNorm(u_t) over channels.

`owner` [T] is each token's sequence, `limits` where sequences begin; a history [W − 1, D] lies before each. A program
takes BT tokens and BD channels at a time. Activations are computed again wherever they are wanted, in the backward
those of the W − 1 tokens after its own too. With NORM the forward looks at its tokens twice, first for mean and 1/σ
(`moments` [2, T]), and the backward has a pass of its own for ⟨dy γ⟩ and ⟨dy γ y⟩ (`sums` [2, T]), y = (u − mean)/σ.
"""

# mypy: ignore-errors
import triton.language as tl

from prism.ops.triton.compiling import kernel


@kernel
def source(x, history, t, n, start, i, real, D: tl.constexpr, W: tl.constexpr):
    """x_t of each token, from the history of its sequence where t lies before it."""
    old = t < start
    inside = tl.load(x + t[:, None] * D + i[None, :], mask=(real & ~old)[:, None] & (i < D)[None, :], other=0.0)
    place = n * (W - 1) + (t - start) + (W - 1)
    past = tl.load(history + place[:, None] * D + i[None, :], mask=(real & old)[:, None] & (i < D)[None, :], other=0.0)
    return (inside + past).to(tl.float32)


@kernel
def tap(w, j, i, D: tl.constexpr, W: tl.constexpr):
    """w_j of each channel; the last column of w [D, W] meets the current token."""
    return tl.load(w + i * W + (W - 1 - j), mask=i < D, other=0.0).to(tl.float32)


@kernel
def activation(
    x, w, history, t, n, start, i, real, D: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):
    """Σ_j w_j x_{t−j}."""
    a = tl.zeros((BT, BD), tl.float32)
    for j in range(0, W):
        a += tap(w, j, i, D, W)[None, :] * source(x, history, t - j, n, start, i, real, D, W)
    return a


@kernel
def own_tokens(owner, limits, block, T, BT: tl.constexpr):
    """A block of tokens: each one's place, whether it is there, its sequence and where that begins."""
    t = block.to(tl.int64) * BT + tl.arange(0, BT)
    real = t < T
    n = tl.load(owner + t, mask=real, other=0)
    return t, real, n, tl.load(limits + n)


@kernel
def of_channels(pointer, i, D: tl.constexpr):
    """One number per channel, [1, BD]."""
    return tl.load(pointer + i, mask=i < D, other=0.0).to(tl.float32)[None, :]


@kernel
def of_tokens(pointer, t, real):
    """One number per token, [BT, 1]."""
    return tl.load(pointer + t, mask=real, other=0.0)[:, None]


@kernel
def tile(pointer, t, real, i, D: tl.constexpr):
    """[BT, BD] of a matrix [T, D], in float32."""
    mask = real[:, None] & (i < D)[None, :]
    return tl.load(pointer + t[:, None] * D + i[None, :], mask=mask, other=0.0).to(tl.float32)


@kernel
def put(pointer, t, real, i, value, D: tl.constexpr):
    """The inverse of `tile`."""
    mask = real[:, None] & (i < D)[None, :]
    tl.store(pointer + t[:, None] * D + i[None, :], value.to(pointer.dtype.element_ty), mask=mask)


@kernel
def conv_forward(
    x, w, history, owner, limits, u, T, D: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):
    """SiLU of the convolution."""
    t, real, n, start = own_tokens(owner, limits, tl.program_id(0), T, BT)
    i = tl.program_id(1) * BD + tl.arange(0, BD)
    a = activation(x, w, history, t, n, start, i, real, D, W, BT, BD)
    put(u, t, real, i, a * tl.sigmoid(a), D)


@kernel
def conv_norm_forward(
    x, w, gamma, beta, history, owner, limits, u, moments, eps, T,
    D: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """LayerNorm of the same: mean and variance grow by blocks of channels, each about its own mean."""
    t, real, n, start = own_tokens(owner, limits, tl.program_id(0), T, BT)
    mean, square = tl.zeros((BT,), tl.float32), tl.zeros((BT,), tl.float32)
    for first in range(0, D, BD):
        i = first + tl.arange(0, BD)
        a = activation(x, w, history, t, n, start, i, real, D, W, BT, BD)
        count = tl.sum((i < D).to(tl.float32), 0)
        y, share = a * tl.sigmoid(a), count / (first + count)
        own = tl.sum(y, 1) / count  # a channel that is not there has a = 0
        apart = tl.where((i < D)[None, :], y - own[:, None], 0.0)
        square += tl.sum(apart * apart, 1) + (own - mean) * (own - mean) * (first * share)
        mean += (own - mean) * share
    scale = tl.rsqrt(square / D + eps)
    tl.store(moments + t, mean, mask=real)
    tl.store(moments + T + t, scale, mask=real)
    for first in range(0, D, BD):
        i = first + tl.arange(0, BD)
        a = activation(x, w, history, t, n, start, i, real, D, W, BT, BD)
        y = (a * tl.sigmoid(a) - mean[:, None]) * scale[:, None]
        put(u, t, real, i, y * of_channels(gamma, i, D) + of_channels(beta, i, D), D)


@kernel
def norm_sums(
    x, w, gamma, history, owner, limits, moments, du, sums, T,
    D: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """What all channels of a token share in the gradient of the norm: ⟨dy γ⟩ and ⟨dy γ y⟩."""
    t, real, n, start = own_tokens(owner, limits, tl.program_id(0), T, BT)
    mean, scale = of_tokens(moments, t, real), of_tokens(moments + T, t, real)
    plain, along = tl.zeros((BT,), tl.float32), tl.zeros((BT,), tl.float32)
    for first in range(0, D, BD):
        i = first + tl.arange(0, BD)
        a = activation(x, w, history, t, n, start, i, real, D, W, BT, BD)
        grads = tile(du, t, real, i, D) * of_channels(gamma, i, D)
        plain += tl.sum(grads, 1)
        along += tl.sum(grads * (a * tl.sigmoid(a) - mean) * scale, 1)
    tl.store(sums + t, plain / D, mask=real)
    tl.store(sums + T + t, along / D, mask=real)


@kernel
def before_silu(a, du, gamma, moments, sums, t, real, i, T, D: tl.constexpr, NORM: tl.constexpr):
    """The gradient of a; 0 for a token that is not real."""
    s = tl.sigmoid(a)
    grads = tile(du, t, real, i, D)
    if NORM:
        y = (a * s - of_tokens(moments, t, real)) * of_tokens(moments + T, t, real)
        grads = grads * of_channels(gamma, i, D) - of_tokens(sums, t, real) - y * of_tokens(sums + T, t, real)
        grads *= of_tokens(moments + T, t, real)
    return grads * s * (1.0 + a * (1.0 - s))


@kernel
def conv_backward(
    x, w, gamma, history, owner, limits, moments, sums, du, dx, shares, T,
    D: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BW: tl.constexpr, STEPS: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """dx, and the share of STEPS blocks of tokens in dw, then in dγ and dβ: [programs, W (+ 2), D]."""
    i, row = tl.program_id(1) * BD + tl.arange(0, BD), tl.arange(0, BW)[:, None]
    total = tl.zeros((BW, BD), tl.float32)
    for step in range(0, STEPS):
        t, real, n, start = own_tokens(owner, limits, tl.program_id(0) * STEPS + step, T, BT)
        stop = tl.load(limits + n + 1)
        found = tl.zeros((BT, BD), tl.float32)
        for j in range(0, W):  # not unrolled: what every tap loads would fill the registers
            later = real & (t + j < stop)
            a = activation(x, w, history, t + j, n, start, i, later, D, W, BT, BD)
            da = before_silu(a, du, gamma, moments, sums, t + j, later, i, T, D, NORM)
            found += tap(w, j, i, D, W)[None, :] * da
        put(dx, t, real, i, found, D)
        a = activation(x, w, history, t, n, start, i, real, D, W, BT, BD)
        da = before_silu(a, du, gamma, moments, sums, t, real, i, T, D, NORM)
        for m in range(0, W):
            share = tl.sum(da * source(x, history, t - m, n, start, i, real, D, W), 0)
            total += tl.where(row == m, share[None, :], 0.0)
        if NORM:
            grads = tile(du, t, real, i, D)
            y = (a * tl.sigmoid(a) - of_tokens(moments, t, real)) * of_tokens(moments + T, t, real)
            total += tl.where(row == W, tl.sum(grads * y, 0)[None, :], 0.0)
            total += tl.where(row == W + 1, tl.sum(grads, 0)[None, :], 0.0)
    rows: tl.constexpr = W + 2 if NORM else W
    place = shares + (tl.program_id(0).to(tl.int64) * rows + row) * D + i[None, :]
    tl.store(place, total, mask=(row < rows) & (i < D)[None, :])


@kernel
def conv_history_backward(
    x, w, gamma, history, limits, moments, sums, du, dhistory, T,
    D: tl.constexpr, W: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """The gradient of what came before each sequence: one program per sequence and block of channels."""
    n = tl.program_id(0).to(tl.int64)
    i, m = tl.program_id(1) * BD + tl.arange(0, BD), tl.arange(0, BH)
    start, stop = tl.load(limits + n), tl.load(limits + n + 1)
    found = tl.zeros((BH, BD), tl.float32)
    for j in range(0, W):
        t = start + m - (W - 1) + j
        real = (m < W - 1) & (t >= start) & (t < stop)
        a = activation(x, w, history, t, n, start, i, real, D, W, BH, BD)
        da = before_silu(a, du, gamma, moments, sums, t, real, i, T, D, NORM)
        found += tap(w, j, i, D, W)[None, :] * da
    place = dhistory + (n * (W - 1) + m)[:, None] * D + i[None, :]
    tl.store(place, found.to(dhistory.dtype.element_ty), mask=(m < W - 1)[:, None] & (i < D)[None, :])
