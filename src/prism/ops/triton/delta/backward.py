"""The backward pass: what each chunk solved, a walk from the last chunk to the first, and all gradients.

With dO the gradient of the outputs (times the scale) and dS that of the state after a chunk, rows as in `forward`:

    dY_l = P_lᵀ dO + e^{g_C − g} K_l dSᵀ        dR = (I + A_1)⁻ᵀ dY_1        dW_1 = dR,  dW_l = dY_l − A_lᵀ dR
    dS ← e^{g_C} dS + dOᵀ (e^g Q) − dRᵀ (E e^g K_1)

The walk needs neither the values nor the directions after the first; everything else is one program per chunk and
head. `prepare` and `walk_back` leave U, (I + A_1)⁻¹, dR and dS for `gradients`.
"""

# mypy: ignore-errors
import triton.language as tl

from prism.ops.triton.compiling import kernel
from prism.ops.triton.delta.forward import sequence
from prism.ops.triton.delta.parts import decays, dot, gamma, gate, inverse, put, put_gate, strict, tile


@kernel
def chunk_place(chunk, T, limits, chunk_first, chunk_sequence, N, C: tl.constexpr, PACKED: tl.constexpr):
    """First token and count of tokens of a chunk; no tokens for one that packed sequences do not have."""
    if PACKED:
        n = tl.load(chunk_sequence + chunk)
        place = tl.minimum(n, N - 1)
        offset = (chunk - tl.load(chunk_first + place)) * C
        start = tl.load(limits + place) + offset
        left = tl.where(n < N, tl.load(limits + place + 1) - start, 0).to(tl.int32)
    else:
        chunks = (T + C - 1) // C
        offset = (chunk % chunks) * C
        start = (chunk // chunks).to(tl.int64) * T + offset
        left = T - offset
    return start, left


@kernel
def prepare(
    k, v, beta, log_alpha, erase, limits, chunk_first, chunk_sequence, kept, inverses, U, T, N,
    H: tl.constexpr, L: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(I + A_1)⁻¹ and U of each chunk, given the state before it."""
    chunk, h, first = tl.program_id(1), tl.program_id(2), tl.program_id(0) * BV
    start, left = chunk_place(chunk, T, limits, chunk_first, chunk_sequence, N, C, PACKED)
    if left <= 0:
        return
    kind: tl.constexpr = k.dtype.element_ty
    at, own = start * H + h, chunk.to(tl.int64) * H + h
    coarse, fine, _, _ = decays(log_alpha + at, left, C, H)
    eps = gate(erase + at, left, C, H)
    G = gamma(coarse, fine, C)
    K1 = tile(k + at * L * K, left, C, H * L * K, K, BK)
    X = inverse(strict(eps[:, None] * dot(K1, tl.trans(K1), kind, PRECISION) * G, C), C, PRECISION).to(kind)
    if first == 0:
        put(inverses + own * C * C, C, C, C, C, C, X)
    S = tile(kept + (own * V + first) * K, V - first, BV, K, K, BK)
    V1 = tile(v + at * L * V + first, left, C, H * L * V, V - first, BV)
    R = gate(beta + at * L, left, C, H * L)[:, None] * V1
    R -= (eps * tl.exp(coarse + fine))[:, None] * dot(K1, tl.trans(S), kind, PRECISION)
    for l in range(1, L):
        Kl = tile(k + (at * L + l) * K, left, C, H * L * K, K, BK)
        Vl = tile(v + (at * L + l) * V + first, left, C, H * L * V, V - first, BV)
        W = gate(beta + at * L + l, left, C, H * L)[:, None] * Vl
        R -= dot(strict(eps[:, None] * dot(K1, tl.trans(Kl), kind, PRECISION) * G, C), W, kind, PRECISION)
    put(U + at * V + first, left, C, H * V, V - first, BV, dot(X, R, kind, PRECISION))


@kernel
def walk_back(
    q, k, log_alpha, erase, do, dS_end, limits, chunk_first, inverses, dR, dkept, dS0, scale, T,
    H: tl.constexpr, L: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dR of each token, dS after each chunk (kept), and dS before the first token."""
    n, h, first = tl.program_id(1), tl.program_id(2), tl.program_id(0) * BV
    start, length, chunk = sequence(n, T, limits, chunk_first, C, PACKED)
    kind: tl.constexpr = q.dtype.element_ty
    own = ((n * H + h).to(tl.int64) * V + first) * K
    dS = tl.trans(tile(dS_end + own, V - first, BV, K, K, BK)).to(tl.float32)  # [K, V], as the forward's state
    chunks = tl.cdiv(length, C)
    for step in range(0, chunks):
        c = chunks - 1 - step
        left, at, place = length - c * C, (start + c * C) * H + h, (chunk + c) * H + h
        put(dkept + (place * V + first) * K, V - first, BV, K, K, BK, tl.trans(dS))
        coarse, fine, coarse_end, fine_end = decays(log_alpha + at, left, C, H)
        decay = tl.exp(coarse + fine)
        end = tl.exp((coarse_end - coarse) + (fine_end - fine))
        Q = tile(q + at * K, left, C, H * K, K, BK)
        K1 = tile(k + at * L * K, left, C, H * L * K, K, BK)
        dO = (scale * tile(do + at * V + first, left, C, H * V, V - first, BV).to(tl.float32)).to(kind)
        P = dot(K1, tl.trans(Q), kind, PRECISION) * tl.trans(gamma(coarse, fine, C))  # P_1ᵀ
        dY = dot(P, dO, kind, PRECISION) + end[:, None] * dot(K1, dS, kind, PRECISION)
        X = tile(inverses + place * C * C, C, C, C, C, C)
        dr = dot(tl.trans(X), dY, kind, PRECISION)
        put(dR + at * V + first, left, C, H * V, V - first, BV, dr)
        dS = dS * tl.exp(coarse_end + fine_end) + dot(tl.trans(Q), decay[:, None] * dO, kind, PRECISION)
        dS -= dot(tl.trans(K1), (gate(erase + at, left, C, H) * decay)[:, None] * dr, kind, PRECISION)
    put(dS0 + own, V - first, BV, K, K, BK, tl.trans(dS))


@kernel
def direction(
    l, Q, K1, eps, end, G, dQ, dK1, k, v, beta, U, do, dR, dS, dv, dbeta, at, left, scale,
    FIRST: tl.constexpr, H: tl.constexpr, L: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, kind: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one direction's write and read: dQ and dK1 grow; dK_l; the shares of dg, of dε and of the end."""
    Kl = tile(k + (at * L + l) * K, left, C, H * L * K, K, BK)
    P = dot(Q, tl.trans(Kl), kind, PRECISION) * G
    KK = strict(dot(K1, tl.trans(Kl), kind, PRECISION) * G, C)
    b = gate(beta + at * L + l, left, C, H * L)
    dP, dA, dK = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32), tl.zeros((C, BK), tl.float32)
    db = tl.zeros((C,), tl.float32)
    for first in range(0, V, BV):
        Vl = tile(v + (at * L + l) * V + first, left, C, H * L * V, V - first, BV).to(tl.float32)
        dO = (scale * tile(do + at * V + first, left, C, H * V, V - first, BV).to(tl.float32)).to(kind)
        dr = tile(dR + at * V + first, left, C, H * V, V - first, BV)
        s = tile(dS + first * K, V - first, BV, K, K, BK)
        if FIRST:
            Y = tile(U + at * V + first, left, C, H * V, V - first, BV)
            dW = dr.to(tl.float32)
        else:
            Y = (b[:, None] * Vl).to(kind)
            dW = dot(tl.trans(P), dO, kind, PRECISION) - dot(tl.trans(eps[:, None] * KK), dr, kind, PRECISION)
            dW += end[:, None] * dot(Kl, tl.trans(s), kind, PRECISION)
        dP += dot(dO, tl.trans(Y), kind, PRECISION)
        dA -= dot(dr, tl.trans(Y), kind, PRECISION)
        dK += dot(Y, s, kind, PRECISION)
        db += tl.sum(dW * Vl, 1)
        put(dv + (at * L + l) * V + first, left, C, H * L * V, V - first, BV, b[:, None] * dW)
    put_gate(dbeta + at * L + l, left, C, H * L, db)
    dK *= end[:, None]
    kept = tl.sum(dK * Kl, 1)
    # Γ_ij grows with g_i and shrinks with g_j; where i = j there is no decay
    flow = strict(dP * P, C) + dA * (eps[:, None] * KK)
    dg = tl.sum(flow, 1) - tl.sum(flow, 0)
    deps = tl.sum(dA * KK, 1)
    dP *= G
    dA = strict(eps[:, None] * dA * G, C)
    dQ += dot(dP, Kl, kind, PRECISION)
    dK1 += dot(dA, Kl, kind, PRECISION)
    dK += dot(tl.trans(dP), Q, kind, PRECISION) + dot(tl.trans(dA), K1, kind, PRECISION)
    return dQ, dK1, dK, dg, deps, kept


@kernel
def gradients(
    q, k, v, beta, log_alpha, erase, limits, chunk_first, chunk_sequence, kept, U, do, dR, dkept,
    dq, dk, dv, dbeta, dlog_alpha, derase, scale, T, N,
    H: tl.constexpr, L: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of every operand of one chunk, given U, dR, and S before and dS after it."""
    chunk, h = tl.program_id(0), tl.program_id(1)
    start, left = chunk_place(chunk, T, limits, chunk_first, chunk_sequence, N, C, PACKED)
    if left <= 0:
        return
    kind: tl.constexpr = q.dtype.element_ty
    at, own = start * H + h, (chunk.to(tl.int64) * H + h) * V * K
    coarse, fine, coarse_end, fine_end = decays(log_alpha + at, left, C, H)
    decay = tl.exp(coarse + fine)
    end = tl.exp((coarse_end - coarse) + (fine_end - fine))
    eps = gate(erase + at, left, C, H)
    Q = tile(q + at * K, left, C, H * K, K, BK)
    K1 = tile(k + at * L * K, left, C, H * L * K, K, BK)

    # what reaches the state before the chunk
    dQ, dK1 = tl.zeros((C, BK), tl.float32), tl.zeros((C, BK), tl.float32)
    through = tl.zeros((BK,), tl.float32)
    for first in range(0, V, BV):
        s = tile(kept + own + first * K, V - first, BV, K, K, BK)
        ds = tile(dkept + own + first * K, V - first, BV, K, K, BK)
        dO = (scale * tile(do + at * V + first, left, C, H * V, V - first, BV).to(tl.float32)).to(kind)
        dQ += dot(dO, s, kind, PRECISION)
        dK1 += dot(tile(dR + at * V + first, left, C, H * V, V - first, BV), s, kind, PRECISION)
        through += tl.sum(s.to(tl.float32) * ds.to(tl.float32), 0)
    dg = decay * tl.sum(dQ * Q, 1)
    deps = -decay * tl.sum(dK1 * K1, 1)
    dg += eps * deps
    dQ *= decay[:, None]
    dK1 *= -(eps * decay)[:, None]

    G = gamma(coarse, fine, C)
    dQ, dK1, dK, dg_l, deps_l, before = direction(
        0, Q, K1, eps, end, G, dQ, dK1, k, v, beta, U, do, dR, dkept + own, dv, dbeta, at, left, scale,
        True, H, L, K, V, BK, BV, C, kind, PRECISION,
    )  # fmt: skip
    dK1 += dK
    dg += dg_l
    deps += deps_l
    for l in range(1, L):
        dQ, dK1, dK, dg_l, deps_l, before_l = direction(
            l, Q, K1, eps, end, G, dQ, dK1, k, v, beta, U, do, dR, dkept + own, dv, dbeta, at, left, scale,
            False, H, L, K, V, BK, BV, C, kind, PRECISION,
        )  # fmt: skip
        put(dk + (at * L + l) * K, left, C, H * L * K, K, BK, dK)
        dg += dg_l
        deps += deps_l
        before += before_l
    put(dq + at * K, left, C, H * K, K, BK, dQ)
    put(dk + at * L * K, left, C, H * L * K, K, BK, dK1)
    put_gate(derase + at, left, C, H, deps)
    # e^{g_C − g_j} holds the decays after token j: token i gets what came before it, itself left out and not subtracted
    earlier = tl.sum(strict(before[None, :] + tl.zeros((C, C), tl.float32), C), 1)
    dlog = tl.cumsum(dg, 0, reverse=True) + earlier + tl.exp(coarse_end + fine_end) * tl.sum(through, 0)
    put_gate(dlog_alpha + at, left, C, H, dlog)
