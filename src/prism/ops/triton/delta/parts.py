"""What the kernels of the recurrence share: loads, products, decays inside a chunk, and the unit-triangular inverse.

Tiles are [C, ·] with one row per token of a chunk; rows beyond the sequence are zeros, with log α = 0, so that a
padded token neither decays, erases nor writes.
"""

# mypy: ignore-errors
import triton.language as tl

from prism.ops.triton.compiling import kernel


@kernel
def dot(a, b, kind: tl.constexpr, precision: tl.constexpr):
    """a b with operands of one kind (bfloat16, float16 or float32), accumulated in float32."""
    return tl.dot(a.to(kind), b.to(kind), input_precision=precision, out_dtype=tl.float32)


@kernel
def tile(pointer, left, R: tl.constexpr, stride: tl.constexpr, width, B: tl.constexpr):
    """[R, B] of which row i begins i · stride places on; zeros from row `left` and from column `width` on."""
    i, j = tl.arange(0, R)[:, None], tl.arange(0, B)[None, :]
    return tl.load(pointer + (i * stride + j), mask=(i < left) & (j < width), other=0.0)


@kernel
def put(pointer, left, R: tl.constexpr, stride: tl.constexpr, width, B: tl.constexpr, value):
    """The inverse of `tile`."""
    i, j = tl.arange(0, R)[:, None], tl.arange(0, B)[None, :]
    tl.store(pointer + (i * stride + j), value.to(pointer.dtype.element_ty), mask=(i < left) & (j < width))


@kernel
def gate(pointer, left, C: tl.constexpr, stride: tl.constexpr):
    """One number per token, in float32."""
    i = tl.arange(0, C)
    return tl.load(pointer + i * stride, mask=i < left, other=0.0).to(tl.float32)


@kernel
def put_gate(pointer, left, C: tl.constexpr, stride: tl.constexpr, value):
    """The inverse of `gate`."""
    i = tl.arange(0, C)
    tl.store(pointer + i * stride, value.to(pointer.dtype.element_ty), mask=i < left)


@kernel
def decays(log_alpha, left, C: tl.constexpr, stride: tl.constexpr):
    """Sums of log α from the chunk's first token on, as whole 64ths and the rest, and the same of the whole chunk.

    Two sums can be −800 each and differ by little: sums of 64ths are exact in float32, those of the rest are small.
    Below −1000 a decay is 0 in float32 either way, and the sums stay finite.
    """
    x = tl.maximum(gate(log_alpha, left, C, stride), -1000.0)
    coarse = tl.floor(x * 64.0) * 0.015625
    fine = x - coarse
    return tl.cumsum(coarse, 0), tl.cumsum(fine, 0), tl.sum(coarse, 0), tl.sum(fine, 0)


@kernel
def gamma(coarse, fine, C: tl.constexpr):
    """Γ_ij = e^{g_i − g_j} for i ≥ j, else 0."""
    i = tl.arange(0, C)
    difference = (coarse[:, None] - coarse[None, :]) + (fine[:, None] - fine[None, :])
    # above the diagonal the difference is positive and could overflow
    return tl.where(i[:, None] >= i[None, :], tl.exp(tl.minimum(difference, 0.0)), 0.0)


@kernel
def strict(x, C: tl.constexpr):
    """The part below the diagonal."""
    i = tl.arange(0, C)
    return tl.where(i[:, None] > i[None, :], x, 0.0)


@kernel
def inverse(A, C: tl.constexpr, precision: tl.constexpr):
    """(I + A)⁻¹ for a strictly lower A [C, C], C = 16, 32 or 64.

    Blocks of 16 on the diagonal by substitution, all at once, row after row: powers of A would overflow the
    precision where keys repeat. Then pairs of blocks are joined: [[X, 0], [−Z B X, Z]].
    """
    N: tl.constexpr = C // 16
    i = tl.arange(0, 16)
    blocks = tl.arange(0, N)
    same = (blocks[:, None] == blocks[None, :])[:, None, :, None]
    D = tl.sum(tl.where(same, tl.reshape(A, (N, 16, N, 16)), 0.0), 2)  # [N, 16, 16]
    X = tl.where((i[:, None] == i[None, :])[None, :, :], 1.0, 0.0) + tl.zeros((N, 16, 16), tl.float32)
    for row in range(1, 16):
        here = (i == row)[None, :, None]
        a = tl.sum(tl.where(here, D, 0.0), 1)  # [N, 16]: row `row` of A
        x = tl.sum(a[:, :, None] * X, 1)  # rows above are solved; a is 0 from the diagonal on
        X = tl.where(here, X - x[:, None, :], X)
    if C >= 32:
        X = join(A, X, C, 16, precision)
    if C >= 64:
        X = join(A, X, C, 32, precision)
    return tl.reshape(X, (C, C))


@kernel
def join(A, X, C: tl.constexpr, size: tl.constexpr, precision: tl.constexpr):
    """Inverses of blocks of `size` [C/size, size, size] to those of twice the size."""
    M: tl.constexpr = C // (2 * size)
    pairs = tl.arange(0, M)
    half = tl.arange(0, 2)
    same = (pairs[:, None] == pairs[None, :])[:, None, None, :, None, None]
    below = ((half[:, None] == 1) & (half[None, :] == 0))[None, :, None, None, :, None]
    B = tl.where(same & below, tl.reshape(A, (M, 2, size, M, 2, size)), 0.0)
    B = tl.sum(tl.sum(tl.sum(B, 4), 3), 1)  # [M, size, size]
    X = tl.reshape(X, (M, 2, size, size))
    upper = tl.sum(tl.where((half == 0)[None, :, None, None], X, 0.0), 1)
    lower = tl.sum(tl.where((half == 1)[None, :, None, None], X, 0.0), 1)
    BX = tl.dot(B, upper, input_precision=precision)
    corner = -tl.dot(lower, BX, input_precision=precision)
    # [M, 2, size, 2, size]
    row, column = half[None, :, None, None, None], half[None, None, None, :, None]
    joined = tl.where(row == column, X[:, :, :, None, :], 0.0)
    joined = tl.where(row > column, corner[:, None, :, None, :], joined)
    return tl.reshape(joined, (M, 2 * size, 2 * size))
