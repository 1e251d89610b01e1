"""Parts that work on each row alone: the refinement loop, unit vectors, the gated norm. A program takes BM rows.

Sums are float32 whatever the operands are; what a backward needs is computed again from the operands, not kept.
"""

# mypy: ignore-errors
import triton.language as tl

from prism.ops.triton.compiling import kernel


@kernel
def places(first, M, width: tl.constexpr, stride: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr):
    """Where rows first, …, first + BM − 1 of `width` numbers lie, and which of them are there."""
    m, i = first + tl.arange(0, BM), tl.arange(0, BV)
    return m.to(tl.int64)[:, None] * stride + i[None, :], (m < M)[:, None] & (i < width)[None, :]


@kernel
def load_block(pointer, first, M, width: tl.constexpr, stride: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr):
    """[BM, BV]; row m begins m · stride places on."""
    at, mask = places(first, M, width, stride, BM, BV)
    return tl.load(pointer + at, mask=mask, other=0.0)


@kernel
def load_rows(pointer, first, M, width: tl.constexpr, stride: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr):
    """The same in float32."""
    return load_block(pointer, first, M, width, stride, BM, BV).to(tl.float32)


@kernel
def store_rows(pointer, value, first, M, width: tl.constexpr, stride: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr):
    """The inverse of `load_rows`."""
    at, mask = places(first, M, width, stride, BM, BV)
    tl.store(pointer + at, value.to(pointer.dtype.element_ty), mask=mask)


@kernel
def normal(a):
    """The normal distribution's Φ(a) and density."""
    return 0.5 * (1.0 + tl.erf(a * 0.7071067811865476)), 0.3989422804014327 * tl.exp(-0.5 * a * a)


@kernel
def refine_forward(r, p, delta, M, L: tl.constexpr, V: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr):
    """δ^l = GELU(p^l ⊙ r^l), r^{l+1} = r^l − δ^l; r [M, V], p and δ [M, L, V]."""
    first = tl.program_id(0) * BM
    left = load_rows(r, first, M, V, V, BM, BV)
    for l in range(0, L):
        a = load_rows(p + l * V, first, M, V, L * V, BM, BV) * left
        below, _ = normal(a)
        store_rows(delta + l * V, a * below, first, M, V, L * V, BM, BV)
        left -= a * below


@kernel
def refine_backward(r, p, ddelta, dr, dp, M, L: tl.constexpr, V: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr):
    """dr [M, V] and dp [M, L, V]; each step's residual is computed anew."""
    first = tl.program_id(0) * BM
    dleft = tl.zeros((BM, BV), tl.float32)
    for step in range(0, L):
        l = L - 1 - step
        left = load_rows(r, first, M, V, V, BM, BV)
        for j in range(0, l):
            a = load_rows(p + j * V, first, M, V, L * V, BM, BV) * left
            below, _ = normal(a)
            left -= a * below
        gain = load_rows(p + l * V, first, M, V, L * V, BM, BV)
        a = gain * left
        below, density = normal(a)
        da = (load_rows(ddelta + l * V, first, M, V, L * V, BM, BV) - dleft) * (below + a * density)
        store_rows(dp + l * V, da * left, first, M, V, L * V, BM, BV)
        dleft += da * gain
    store_rows(dr, dleft, first, M, V, V, BM, BV)


@kernel
def unit_forward(x, y, eps, M, V: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr):
    """y = x / max(‖x‖, eps)."""
    first = tl.program_id(0) * BM
    rows = load_rows(x, first, M, V, V, BM, BV)
    norm = tl.sqrt(tl.sum(rows * rows, 1))
    store_rows(y, rows / tl.maximum(norm, eps)[:, None], first, M, V, V, BM, BV)


@kernel
def unit_backward(x, dy, dx, eps, M, V: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr):
    """dx = (dy − y ⟨y, dy⟩) / ‖x‖, or dy / eps where the norm was too small to divide by."""
    first = tl.program_id(0) * BM
    rows, grads = load_rows(x, first, M, V, V, BM, BV), load_rows(dy, first, M, V, V, BM, BV)
    norm = tl.sqrt(tl.sum(rows * rows, 1))
    factor = 1.0 / tl.maximum(norm, eps)
    along = tl.where(norm > eps, tl.sum(rows * grads, 1) * factor * factor, 0.0)
    store_rows(dx, (grads - rows * along[:, None]) * factor[:, None], first, M, V, V, BM, BV)


@kernel
def gated_norm_forward(o, weight, gate, y, eps, M, V: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr):
    """y = RMSNorm(o) ⊙ SiLU(gate), for rows of one head each."""
    first, i = tl.program_id(0) * BM, tl.arange(0, BV)
    w = tl.load(weight + i, mask=i < V, other=0.0).to(tl.float32)
    rows, g = load_rows(o, first, M, V, V, BM, BV), load_rows(gate, first, M, V, V, BM, BV)
    factor = tl.rsqrt(tl.sum(rows * rows, 1) / V + eps)
    store_rows(y, rows * factor[:, None] * w[None, :] * (g * tl.sigmoid(g)), first, M, V, V, BM, BV)


@kernel
def gated_norm_backward(
    o, weight, gate, dy, do, dgate, dweight, eps, M, V: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr
):
    """do, dgate, and each program's share of dweight [programs, V]."""
    first, i = tl.program_id(0) * BM, tl.arange(0, BV)
    w = tl.load(weight + i, mask=i < V, other=0.0).to(tl.float32)
    rows, g = load_rows(o, first, M, V, V, BM, BV), load_rows(gate, first, M, V, V, BM, BV)
    grads = load_rows(dy, first, M, V, V, BM, BV)
    factor = tl.rsqrt(tl.sum(rows * rows, 1) / V + eps)[:, None]
    s = tl.sigmoid(g)
    unscaled = rows * factor
    store_rows(dgate, grads * unscaled * w[None, :] * s * (1.0 + g * (1.0 - s)), first, M, V, V, BM, BV)
    open_ = grads * g * s
    tl.store(dweight + tl.program_id(0) * V + i, tl.sum(open_ * unscaled, 0), mask=i < V)
    open_ *= w[None, :]
    along = tl.sum(open_ * unscaled, 1) / V
    store_rows(do, (open_ - unscaled * along[:, None]) * factor, first, M, V, V, BM, BV)
