"""A chunk of C = 16 tokens of one head, in scratch memory that stays in cache: what forward and backward share.

With incoming state S, Γ_ij the product of the decays after j up to i, W_l = β^l δ^l and K = [K_1; …; K_L]:

    P = (Q Kᵀ) ∘ Γ        KK = (K_1 Kᵀ) ∘ Γ, strictly lower in each block
    Z = e^g K_1 Sᵀ + KK Y           Y = [U; W_2; …; W_L] with U = W_1 − ε Z, row by row
    O = e^g Q Sᵀ + P Y              S' = e^{g_C} S + Yᵀ (e^{g_C − g} K)

The first G = 1 direction erases, or all G = L do. Rows of K come step by step for G = 1, so that those that erase are
the first C; for G = L token by token, the order in which they are written: KK is strictly lower again, K_1 is K.
Z is α_t S_{t−1} k_t, what a token finds stored under its first key. States are transposed, [K, V], so that every
product runs along contiguous rows. K and V are padded with zeros to multiples of C, whole vectors; tokens missing
from a sequence's last chunk have q = k = 0, β = ε = 0, α = 1: they neither decay, erase nor write.
"""

import math
from collections import namedtuple

from prism.ops.cpu.compiling import inner
from prism.ops.cpu.shared import C, copy_state
from prism.ops.cpu.tile import add_product, add_product_t, set_product, set_transpose

Tokens = namedtuple("Tokens", "q k v beta log_alpha erase")  # [T, H, …], as the caller has them; erase is [T, H, G]
Chunk = namedtuple("Chunk", "S X Xg Kt K_end PK Z Y gamma gates eps each")
DECAY, END = 0, 1  # rows of gates: e^g, e^{g_C − g}


def chunk_shapes(G: int, L: int, K: int, V: int) -> Chunk:
    """The shapes of a chunk's arrays, K and V padded; each array holds one chunk or, for the backward, PARTS."""
    return Chunk(
        S=(K, V),  # the state before the chunk
        X=((1 + L) * C, K),  # Q, K_1, …, K_L
        Xg=((1 + G) * C, K),  # e^g Q, e^g K_1
        Kt=(K, L * C),
        K_end=(L * C, K),  # e^{g_C − g} K
        PK=((1 + G) * C, L * C),  # P, KK
        Z=((1 + 2 * G) * C, V),  # e^g Q Sᵀ, e^g K_1 Sᵀ, Z
        Y=(L * C, V),
        gamma=(C, C),  # Γ, zero above the diagonal
        gates=(2, C),
        eps=(G * C,),
        each=(0,),  # no memory; a kernel gets a tuple in its place, see `erasures`
    )


@inner
def erasures(x):  # type: ignore[no-untyped-def]
    """G, where it is 1 known to the compiler: then `each` is (), and of another type than if all directions erase."""
    return x.eps.shape[1] // C if len(x.each) > 0 else 1


@inner
def strides(G, L):  # type: ignore[no-untyped-def]
    """How far apart the rows of a token's directions are, and those of a direction's tokens."""
    return (1, L) if G > 1 else (C, 1)


@inner
def _load_gates(gates, eps, gamma, G, tokens, first, count, h):  # type: ignore[no-untyped-def]
    """ε, and the decays as running products: no logarithms to cancel, and α = 0 is as good as any other."""
    decay = gates.dtype.type(1)
    for i in range(C):
        alpha = gates.dtype.type(1)
        if i < count:
            alpha = math.exp(tokens.log_alpha[first + i, h])
        for l in range(G):
            eps[i * G + l] = tokens.erase[first + i, h, l] if i < count else 0
        decay *= alpha
        gates[DECAY, i] = decay
        for j in range(C):
            gamma[i, j] = alpha * gamma[i - 1, j] if j < i else (1 if j == i else 0)
    for j in range(C):
        gates[END, j] = gamma[C - 1, j]


@inner
def load(x, part, tokens, first, count, h):  # type: ignore[no-untyped-def]
    """Tokens first, …, first + count − 1 of head h into the chunk, with W in the place of Y."""
    X, Xg, K_end, Y, gates = x.X[part], x.Xg[part], x.K_end[part], x.Y[part], x.gates[part]
    G, L, K, V = erasures(x), tokens.k.shape[2], tokens.q.shape[2], tokens.v.shape[3]
    _load_gates(gates, x.eps[part], x.gamma[part], G, tokens, first, count, h)
    for c in range(count):
        t, decay, end = first + c, gates[DECAY, c], gates[END, c]
        for i in range(K):
            X[c, i] = tokens.q[t, h, i]
            Xg[c, i] = decay * tokens.q[t, h, i]
        for l in range(G):
            row = C + (c * L + l if G > 1 else c)  # written out: with strides as numbers this is slower
            for i in range(K):
                Xg[row, i] = decay * tokens.k[t, h, l, i]
        for l in range(L):
            row, beta = c * L + l if G > 1 else l * C + c, tokens.beta[t, h, l]
            for i in range(K):
                X[C + row, i] = tokens.k[t, h, l, i]
                K_end[row, i] = end * tokens.k[t, h, l, i]
            for i in range(V):
                Y[row, i] = beta * tokens.v[t, h, l, i]
    for c in range(count, C):
        X[c] = 0
        Xg[c] = 0
        for l in range(L):
            row = c * L + l if G > 1 else l * C + c
            X[C + row] = 0
            K_end[row] = 0
            Y[row] = 0
            if l < G:
                Xg[C + row] = 0


@inner
def decay_row(row, gamma, L, last):  # type: ignore[no-untyped-def]
    """A row of P or KK whose columns come token by token: decayed up to column `last`, zero from there."""
    for j in range(0, row.shape[0], L):
        for column in range(j, j + L):
            row[column] = row[column] * gamma[j // L] if column < last else 0


@inner
def prepare(x, part):  # type: ignore[no-untyped-def]
    """Makes the products of a chunk's rows, P of queries and KK of keys, decayed and cut to the past."""
    X, Kt, PK, gamma = x.X[part], x.Kt[part], x.PK[part], x.gamma[part]
    G, L = erasures(x), PK.shape[1] // C
    set_transpose(Kt, X[C:])
    set_product(PK, X[: (1 + G) * C], Kt)
    if G > 1:
        for row in range(PK.shape[0]):
            i, last = (row, (row + 1) * L) if row < C else ((row - C) // L, row - C)
            decay_row(PK[row], gamma[i], L, last)
        return
    for i in range(C):
        for l in range(0, PK.shape[1], C):
            for j in range(C):
                PK[i, l + j] = PK[i, l + j] * gamma[i, j] if j <= i else 0
                PK[C + i, l + j] = PK[C + i, l + j] * gamma[i, j] if j < i else 0


@inner
def _substitute(Z, KK, Y, eps):  # type: ignore[no-untyped-def]
    """Z and Y of C rows, one after the other, from what was written before them."""
    for i in range(C):
        for j in range(i):
            a = KK[i, j]
            for n in range(Y.shape[1]):
                Z[i, n] += a * Y[j, n]
        e = eps[i]
        for n in range(Y.shape[1]):
            Y[i, n] -= e * Z[i, n]


@inner
def write(x, part, S):  # type: ignore[no-untyped-def]
    """Z and Y, given the state before the chunk."""
    KK, Y, eps, E = x.PK[part, C:], x.Y[part], x.eps[part], C * erasures(x)
    Z = x.Z[part, C + E :]
    set_product(x.Z[part, : C + E], x.Xg[part], S)
    copy_state(Z, x.Z[part, C : C + E])
    if Y.shape[0] > E:
        add_product(Z, KK, Y[E:], E)
    for first in range(0, E, C):  # blocks of C rows: what earlier ones wrote as a product, then row by row
        if first > 0:
            add_product(Z[first : first + C], KK[first : first + C], Y[:first], 0)
        _substitute(Z[first : first + C], KK[first : first + C, first:], Y[first : first + C], eps[first : first + C])


@inner
def advance(x, part, S):  # type: ignore[no-untyped-def]
    """The state after the chunk, in place."""
    add_product_t(S, x.K_end[part], x.Y[part], 0, x.gates[part, DECAY, C - 1])
