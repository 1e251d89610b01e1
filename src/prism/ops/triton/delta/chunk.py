"""What is computed inside a chunk: products a few channels at a time, decays, the unit-triangular inverse."""

# mypy: ignore-errors
import triton.language as tl

from prism.ops.triton.compiling import kernel
from prism.ops.triton.delta.places import gate, tile


@kernel
def dot(a, b, kind: tl.constexpr, precision: tl.constexpr):
    """a b with operands of one kind (bfloat16, float16 or float32), accumulated in float32."""
    return tl.dot(a.to(kind), b.to(kind), input_precision=precision, out_dtype=tl.float32)


@kernel
def inside(
    q, k, kl, query, write, real, reads, K: tl.constexpr, C: tl.constexpr, kind: tl.constexpr, precision: tl.constexpr
):
    """K_1 K_lᵀ and Q K_lᵀ of a chunk, a few channels at a time: whole rows would fill the registers."""
    KK, QK = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
    for j in range(0, K, 32):
        Kl = tl.trans(tile(kl + j, write, real, K - j, 32))
        KK += dot(tile(k + j, write, real, K - j, 32), Kl, kind, precision)
        QK += dot(tile(q + j, query, reads, K - j, 32), Kl, kind, precision)
    return KK, QK


@kernel
def product(
    q, query, reads, k, write, real, K: tl.constexpr, C: tl.constexpr, kind: tl.constexpr, precision: tl.constexpr
):
    """Q Kᵀ of a chunk, as `inside`."""
    found = tl.zeros((C, C), tl.float32)
    for j in range(0, K, 32):
        Kj = tl.trans(tile(k + j, write, real, K - j, 32))
        found += dot(tile(q + j, query, reads, K - j, 32), Kj, kind, precision)
    return found


@kernel
def through_state(Sa, Sb, x, at, real, K: tl.constexpr, HK: tl.constexpr, kind: tl.constexpr, precision: tl.constexpr):
    """S Xᵀ, [BV, C], for rows X of keys or queries, which are loaded."""
    found = dot(Sa, tl.trans(tile(x, at, real, K, HK)), kind, precision)
    return found + dot(Sb, tl.trans(tile(x + HK, at, real, K - HK, HK)), kind, precision)


@kernel
def add_outer(Sa, Sb, W, x, at, real, K: tl.constexpr, HK: tl.constexpr, kind: tl.constexpr, precision: tl.constexpr):
    """S + W X for W [BV, C] and rows X of keys or queries, which are loaded."""
    Sa += dot(W, tile(x, at, real, K, HK), kind, precision)
    Sb += dot(W, tile(x + HK, at, real, K - HK, HK), kind, precision)
    return Sa, Sb


@kernel
def decays(log_alpha, at, real):
    """Sums of log α from the chunk's first row on, as whole 64ths and the rest, and the same of the whole chunk.

    Two sums can be −800 each and differ by little: sums of 64ths are exact in float32, those of the rest are small.
    Below −1000 a decay is 0 in float32 either way, and the sums stay finite.
    """
    x = tl.maximum(gate(log_alpha, at, real), -1000.0)
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
    """(I + A)⁻¹ for a strictly lower A [C, C], C a power of 2.

    X holds the inverses of the blocks of a size on the diagonal, those of size 1 at first; pairs of blocks are then
    joined, [[X, 0], [−Z B X, Z]], until there is one. Powers of A would overflow the precision where keys repeat.
    """
    i = tl.arange(0, C)
    row, column = i[:, None], i[None, :]
    X = tl.where(row == column, 1.0, 0.0) - tl.where((row // 2 == column // 2) & (row > column), A, 0.0)
    size = 2
    while size < C:
        below = (row // (2 * size) == column // (2 * size)) & (row // size > column // size)
        BX = tl.dot(tl.where(below, A, 0.0), X, input_precision=precision)
        X -= tl.dot(X, BX, input_precision=precision)
        size *= 2
    return X
