"""u_t = SiLU(Σ_{j<W} w_j x_{t−j}), a causal convolution of each channel alone; a program takes BT tokens, BD channels.

`owner` [T] is each token's sequence, `limits` where sequences begin; a history [W − 1, D] lies before each.
The backward computes activations again, those of the W − 1 tokens after its own too: x, du and dx pass once.
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
def conv_forward(
    x, w, history, owner, limits, u, T, D: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):
    """SiLU of the convolution."""
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    i, real = tl.program_id(1) * BD + tl.arange(0, BD), t < T
    n = tl.load(owner + t, mask=real, other=0)
    a = activation(x, w, history, t, n, tl.load(limits + n), i, real, D, W, BT, BD)
    value = (a * tl.sigmoid(a)).to(u.dtype.element_ty)
    tl.store(u + t[:, None] * D + i[None, :], value, mask=real[:, None] & (i < D)[None, :])


@kernel
def conv_backward(
    x, w, history, owner, limits, du, dx, dw, T, D: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):
    """dx, and each block of tokens' share of dw [blocks, W, D]."""
    block = tl.program_id(0).to(tl.int64)
    t = block * BT + tl.arange(0, BT)
    i, real = tl.program_id(1) * BD + tl.arange(0, BD), t < T
    n = tl.load(owner + t, mask=real, other=0)
    start, stop = tl.load(limits + n), tl.load(limits + n + 1)
    found = tl.zeros((BT, BD), tl.float32)
    for j in range(0, W):  # not unrolled: what every tap loads would fill the registers
        later = real & (t + j < stop)
        a = activation(x, w, history, t + j, n, start, i, later, D, W, BT, BD)
        s = tl.sigmoid(a)
        mask = later[:, None] & (i < D)[None, :]
        grads = tl.load(du + (t + j)[:, None] * D + i[None, :], mask=mask, other=0.0).to(tl.float32)
        da = grads * s * (1.0 + a * (1.0 - s))
        found += tap(w, j, i, D, W)[None, :] * da
    a = activation(x, w, history, t, n, start, i, real, D, W, BT, BD)
    s = tl.sigmoid(a)
    own = real[:, None] & (i < D)[None, :]
    grads = tl.load(du + t[:, None] * D + i[None, :], mask=own, other=0.0).to(tl.float32)
    da = grads * s * (1.0 + a * (1.0 - s))
    for m in range(0, W):
        share = tl.sum(da * source(x, history, t - m, n, start, i, real, D, W), 0)
        tl.store(dw + (block * W + m) * D + i, share, mask=i < D)
    tl.store(dx + t[:, None] * D + i[None, :], found.to(dx.dtype.element_ty), mask=real[:, None] & (i < D)[None, :])


@kernel
def conv_history_backward(
    x, w, history, limits, du, dhistory, D: tl.constexpr, W: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr
):
    """The gradient of what came before each sequence: one program per sequence and block of channels."""
    n = tl.program_id(0).to(tl.int64)
    i, m = tl.program_id(1) * BD + tl.arange(0, BD), tl.arange(0, BW)
    start, stop = tl.load(limits + n), tl.load(limits + n + 1)
    found = tl.zeros((BW, BD), tl.float32)
    for j in range(0, W):
        t = start + m - (W - 1) + j
        real = (m < W - 1) & (t >= start) & (t < stop)
        a = activation(x, w, history, t, n, start, i, real, D, W, BW, BD)
        s = tl.sigmoid(a)
        grads = tl.load(du + t[:, None] * D + i[None, :], mask=real[:, None] & (i < D)[None, :], other=0.0)
        found += tap(w, j, i, D, W)[None, :] * grads.to(tl.float32) * s * (1.0 + a * (1.0 - s))
    place = dhistory + (n * (W - 1) + m)[:, None] * D + i[None, :]
    tl.store(place, found.to(dhistory.dtype.element_ty), mask=(m < W - 1)[:, None] & (i < D)[None, :])
