"""A chunk of C = 16 tokens of one head, in scratch memory that stays in cache: what forward and backward share.

With incoming state S, Γ_ij the product of the decays after j up to i, W_l = β^l δ^l and K = [K_1; …; K_L]:

    P = (Q Kᵀ) ∘ Γ        KK = (K_1 Kᵀ) ∘ Γ, strictly lower in each block
    Z = e^g K_1 Sᵀ + KK Y           Y = [U; W_2; …; W_L] with U = W_1 − ε Z, row by row
    O = e^g Q Sᵀ + P Y              S' = e^{g_C} S + Yᵀ (e^{g_C − g} K)

Z is α_t S_{t−1} k_t, what a token finds stored under its first key. States are transposed, [K, V], so that every
product runs along contiguous rows. K and V are padded with zeros to multiples of C, whole vectors; tokens missing
from a sequence's last chunk have q = k = 0, β = ε = 0, α = 1: they neither decay, erase nor write.
"""

import math
from collections import namedtuple

from prism.ops.cpu.compiling import inner
from prism.ops.cpu.shared import C, copy_state
from prism.ops.cpu.tile import add_product, add_product_t, set_product, set_transpose

Tokens = namedtuple("Tokens", "q k v beta log_alpha erase")  # [T, H, …], as the caller has them
Chunk = namedtuple("Chunk", "S X Xg Kt K_end PK Z Y gamma gates")
EPS, DECAY, END, ALPHA = 0, 1, 2, 3  # rows of gates: ε, e^g, e^{g_C − g}, α


def chunk_shapes(L: int, K: int, V: int) -> Chunk:
    """The shapes of a chunk's arrays, K and V padded; each array holds one chunk or, for the backward, PARTS."""
    return Chunk(
        S=(K, V),  # the state before the chunk
        X=((1 + L) * C, K),  # Q, K_1, …, K_L
        Xg=(2 * C, K),  # e^g Q, e^g K_1
        Kt=(K, L * C),
        K_end=(L * C, K),  # e^{g_C − g} K
        PK=(2 * C, L * C),  # P, KK
        Z=(3 * C, V),  # e^g Q Sᵀ, e^g K_1 Sᵀ, Z
        Y=(L * C, V),
        gamma=(C, C),  # Γ, zero above the diagonal
        gates=(4, C),
    )


@inner
def _load_gates(gates, gamma, tokens, first, count, h):  # type: ignore[no-untyped-def]
    """ε and α, and the decays as running products: no logarithms to cancel, and α = 0 is as good as any other."""
    decay = gates.dtype.type(1)
    for i in range(C):
        eps, alpha = gates.dtype.type(0), gates.dtype.type(1)
        if i < count:
            eps, alpha = tokens.erase[first + i, h], math.exp(tokens.log_alpha[first + i, h])
        decay *= alpha
        gates[EPS, i], gates[ALPHA, i], gates[DECAY, i] = eps, alpha, decay
        for j in range(C):
            gamma[i, j] = alpha * gamma[i - 1, j] if j < i else (1 if j == i else 0)
    for j in range(C):
        gates[END, j] = gamma[C - 1, j]


@inner
def load(x, part, tokens, first, count, h):  # type: ignore[no-untyped-def]
    """Tokens first, …, first + count − 1 of head h into the chunk, with W in the place of Y."""
    X, Xg, K_end, Y, gates = x.X[part], x.Xg[part], x.K_end[part], x.Y[part], x.gates[part]
    L, K, V = tokens.k.shape[2], tokens.q.shape[2], tokens.v.shape[3]
    _load_gates(gates, x.gamma[part], tokens, first, count, h)
    for c in range(count):
        t, decay, end = first + c, gates[DECAY, c], gates[END, c]
        for i in range(K):
            X[c, i] = tokens.q[t, h, i]
            Xg[c, i] = decay * tokens.q[t, h, i]
            Xg[C + c, i] = decay * tokens.k[t, h, 0, i]
        for l in range(L):
            row, beta = l * C + c, tokens.beta[t, h, l]
            for i in range(K):
                X[C + row, i] = tokens.k[t, h, l, i]
                K_end[row, i] = end * tokens.k[t, h, l, i]
            for i in range(V):
                Y[row, i] = beta * tokens.v[t, h, l, i]
    for c in range(count, C):
        for l in range(L):
            X[(1 + l) * C + c] = 0
            K_end[l * C + c] = 0
            Y[l * C + c] = 0
        for l in range(2):
            X[l * C + c] = 0
            Xg[l * C + c] = 0


@inner
def prepare(x, part):  # type: ignore[no-untyped-def]
    """P and KK."""
    X, Kt, PK, gamma = x.X[part], x.Kt[part], x.PK[part], x.gamma[part]
    set_transpose(Kt, X[C:])
    set_product(PK, X[: 2 * C], Kt)
    for i in range(C):
        for l in range(0, PK.shape[1], C):
            for j in range(C):
                PK[i, l + j] = PK[i, l + j] * gamma[i, j] if j <= i else 0
                PK[C + i, l + j] = PK[C + i, l + j] * gamma[i, j] if j < i else 0


@inner
def write(x, part, S):  # type: ignore[no-untyped-def]
    """Z and Y, given the state before the chunk."""
    KK, Y, gates, Z = x.PK[part, C:], x.Y[part], x.gates[part], x.Z[part, 2 * C :]
    set_product(x.Z[part, : 2 * C], x.Xg[part], S)
    copy_state(Z, x.Z[part, C : 2 * C])
    if Y.shape[0] > C:
        add_product(Z, KK, Y[C:], C)
    for i in range(C):
        for j in range(i):
            a = KK[i, j]
            for n in range(Y.shape[1]):
                Z[i, n] += a * Y[j, n]
        eps = gates[EPS, i]
        for n in range(Y.shape[1]):
            Y[i, n] -= eps * Z[i, n]


@inner
def advance(x, part, S):  # type: ignore[no-untyped-def]
    """The state after the chunk, in place."""
    add_product_t(S, x.K_end[part], x.Y[part], 0, x.gates[part, DECAY, C - 1])
