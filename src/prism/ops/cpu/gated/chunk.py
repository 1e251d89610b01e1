"""A chunk of C = 16 tokens of one head with a decay per channel, in cache: what forward and backward share.

Rows come in G kinds: G = 1 without erasure, G = 2 with it. X = [a; f] are read with, Y = [k; e] written along, and
W = [V; U] is what is written, U_t = −S_{t-1} f_t. Decays between two tokens are running products, a row at a time:

    M_ij = x_i · (y_j ⊙ α_{j+1} ⊙ … ⊙ α_i)      rows P (of a) to the diagonal; rows A (of f) below it, without α_i
    U = −F̄ S − A W, row by row       O = Ā S + P W       S' = diag(e^{g_C}) S + Y_endᵀ W

States are transposed, [K, V], so that every product runs along contiguous rows. K and V are padded with zeros to
multiples of C; tokens missing from a sequence's last chunk have x = y = v = 0 and α = 1.
"""

import math
from collections import namedtuple

from prism.ops.cpu.compiling import inner
from prism.ops.cpu.shared import C, dot
from prism.ops.cpu.tile import add_product, add_product_t, set_product

Tokens = namedtuple("Tokens", "a k v log_alpha alpha find erase")  # [T, H, …]; find and erase [0, …] without erasure
Chunk = namedtuple("Chunk", "S X X_bar Y Y_end W M O alpha prefix total y")


def chunk_shapes(G: int, K: int, V: int) -> Chunk:
    """The shapes of a chunk's arrays, K and V padded."""
    return Chunk(
        S=(K, V),  # the state before the chunk
        X=(G * C, K),
        X_bar=(G * C, K),  # decayed from the chunk's start
        Y=(G * C, K),
        Y_end=(G * C, K),  # decayed to the chunk's end
        W=(G * C, V),
        M=(G * C, G * C),
        O=(G * C, V),
        alpha=(C, K),
        prefix=(C + 1, K),  # products of the first i decays
        total=(1, K),  # e^{g_C}
        y=(C, K),  # one row of Y, as it decays
    )


@inner
def load_rows(to, first_row, x, first, count, h, scale):  # type: ignore[no-untyped-def]
    """Tokens of x, times scale, and rows of zeros for those that are missing; the padding stays zero."""
    for i in range(count):
        for c in range(x.shape[2]):
            to[first_row + i, c] = scale * x[first + i, h, c]
    for i in range(count, C):
        for c in range(x.shape[2]):
            to[first_row + i, c] = 0


@inner
def _load_total(total, log_alpha, first, count, h):  # type: ignore[no-untyped-def]
    """e^{g_C} from the sum of logarithms: over hundreds of chunks, rounded decays near 1 would drift."""
    K = log_alpha.shape[2]
    for c in range(K):
        total[0, c] = 0
    for i in range(count):
        for c in range(K):
            total[0, c] += log_alpha[first + i, h, c]
    for c in range(K):
        total[0, c] = math.exp(total[0, c])


@inner
def load(x, tokens, first, count, h):  # type: ignore[no-untyped-def]
    """Tokens first, …, first + count − 1 of head h."""
    one = x.S.dtype.type(1)
    load_rows(x.X, 0, tokens.a, first, count, h, one)
    load_rows(x.Y, 0, tokens.k, first, count, h, one)
    load_rows(x.W, 0, tokens.v, first, count, h, one)
    load_rows(x.alpha, 0, tokens.alpha, first, count, h, one)
    if x.X.shape[0] > C:
        load_rows(x.X, C, tokens.find, first, count, h, one)
        load_rows(x.Y, C, tokens.erase, first, count, h, one)
    alpha = x.alpha
    for i in range(count, C):
        for c in range(alpha.shape[1]):
            alpha[i, c] = 1
    _load_total(x.total, tokens.log_alpha, first, count, h)


@inner
def multiply(to, i, a, j, b, k):  # type: ignore[no-untyped-def]
    """to_i = a_j ⊙ b_k"""
    for c in range(to.shape[1]):
        to[i, c] = a[j, c] * b[k, c]


@inner
def axpy(to, i, factor, a, j):  # type: ignore[no-untyped-def]
    """to_i += factor · a_j"""
    for c in range(to.shape[1]):
        to[i, c] += factor * a[j, c]


@inner
def decay_rows(S, total):  # type: ignore[no-untyped-def]
    """S = diag(total) S"""
    for c in range(S.shape[0]):
        factor = total[0, c]
        for i in range(S.shape[1]):
            S[c, i] *= factor


@inner
def decay_row(y, Y, j, alpha):  # type: ignore[no-untyped-def]
    """Row j of Y as it decays: y_i for i from its own token to the chunk's last."""
    own = j % C
    for c in range(y.shape[1]):
        y[own, c] = Y[j, c]
    for i in range(own + 1, C):
        multiply(y, i, y, i - 1, alpha, i)


@inner
def _decays(X, X_bar, alpha, prefix):  # type: ignore[no-untyped-def]
    """The products of the first decays, and X̄."""
    for c in range(prefix.shape[1]):
        prefix[0, c] = 1
    for i in range(C):
        multiply(prefix, i + 1, prefix, i, alpha, i)
        multiply(X_bar, i, X, i, prefix, i + 1)
        if X.shape[0] > C:
            multiply(X_bar, C + i, X, C + i, prefix, i)


@inner
def prepare(x):  # type: ignore[no-untyped-def]
    """What no state enters: X̄, Y_end and M."""
    # arrays by name: a tuple of them handed to a function in a loop costs more than what the function does
    X, Y, Y_end, M, y, alpha = x.X, x.Y, x.Y_end, x.M, x.y, x.alpha
    GC, K = X.shape
    _decays(X, x.X_bar, alpha, x.prefix)
    for j in range(GC):
        decay_row(y, Y, j, alpha)
        for c in range(K):
            Y_end[j, c] = y[C - 1, c]
        for i in range(C):
            M[i, j] = dot(X, i, y, i) if i >= j % C else 0
            if GC > C:
                M[C + i, j] = dot(X, C + i, y, i - 1) if i > j % C else 0


@inner
def _substitute(U, right, A):  # type: ignore[no-untyped-def]
    """U = −right − A_e U, row by row."""
    for i in range(C):
        for c in range(U.shape[1]):
            U[i, c] = -right[i, c]
        for j in range(i):
            axpy(U, i, -A[i, C + j], U, j)


@inner
def write(x):  # type: ignore[no-untyped-def]
    """X̄ S in O, and U in the second half of W, given the state before the chunk."""
    set_product(x.O, x.X_bar, x.S)
    if x.W.shape[0] > C:
        add_product(x.O[C:], x.M[C:], x.W[:C], 0)
        _substitute(x.W[C:], x.O[C:], x.M[C:])


@inner
def read(x):  # type: ignore[no-untyped-def]
    """S_t a_t in the first half of O."""
    add_product(x.O[:C], x.M[:C], x.W, 0)


@inner
def advance(S, total, Y_end, W):  # type: ignore[no-untyped-def]
    """The state after the chunk, in place."""
    decay_rows(S, total)
    add_product_t(S, Y_end, W, 0, 1)
