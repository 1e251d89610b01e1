"""The backward pass: a walk from the last chunk to the first for the gradient of the state, then all other gradients.

With dO the gradient of the outputs (times the scale) and dS that of the state after a chunk, rows as in `forward`:

    dY_l = P_lᵀ dO + e^{g_C − g} K_l dSᵀ        dR = (I + A_1)⁻ᵀ dY_1        dW_1 = dR,  dW_l = dY_l − A_lᵀ dR
    dS ← e^{g_C} dS + dOᵀ (e^g Q) − dRᵀ (E e^g K_1)

The walk needs neither the values nor the directions after the first; everything else is one program per chunk and
head. `restore` and `walk_back` leave S, U, (I + A_1)⁻¹, dR and dS of every chunk for the gradients of the values and
of the keys. As in `forward`, what is as long as a value or a key is held transposed, and a part of it at a time.
"""

# mypy: ignore-errors
import triton.language as tl

from prism.ops.triton.compiling import kernel
from prism.ops.triton.delta.chunk import add_outer, decays, dot, gamma, inside, product, strict, through_state
from prism.ops.triton.delta.places import (
    gate,
    half,
    matrix,
    own_work,
    put,
    put_gate,
    put_half,
    rows,
    sequence,
    sequence_of,
    tile,
)


@kernel
def walk_back(
    q, k, log_alpha, erase, do, dS_end, limits, chunk_first, inverses, dR, dstates, dS0, scale, T,
    H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dR of each row, dS after each chunk, and dS before the first token."""
    n, h, first = own_work(V, BV)
    start, length, chunk = sequence(n, T, limits, chunk_first, C, PACKED)
    kind: tl.constexpr = q.dtype.element_ty
    HK: tl.constexpr = BK // 2
    own = ((n * H + h).to(tl.int64) * V + first) * K
    dSa = half(dS_end + own, 0, V - first, BV, K, HK).to(tl.float32)
    dSb = half(dS_end + own, HK, V - first, BV, K, HK).to(tl.float32)
    chunks = tl.cdiv(length, C)
    for step in range(0, chunks):
        c = chunks - 1 - step
        place = (chunk + c) * H + h
        put_half(dstates + (place * V + first) * K, 0, V - first, BV, K, HK, dSa)
        put_half(dstates + (place * V + first) * K, HK, V - first, BV, K, HK, dSb)
        at, token, turn, real, begins, reads = rows(start, c * C, length, h, H, R, C)
        query, write, k1 = token * (H * K), (token * (H * L) + turn) * K, k + at * L * K
        coarse, fine, coarse_end, fine_end = decays(log_alpha + at, token * H, begins)
        decay = tl.exp(coarse + fine)
        end = tl.exp((coarse_end - coarse) + (fine_end - fine))
        P = product(q + at * K, query, reads, k1, write, real, K, C, kind, PRECISION) * gamma(coarse, fine, C)
        dO = tl.trans(tile(do + at * V + first, token * (H * V), reads, V - first, BV))
        dY = end[None, :] * through_state(dSa, dSb, k1, write, real, K, HK, kind, PRECISION)
        dY += scale * dot(dO, P, kind, PRECISION)
        dr = dot(dY, matrix(inverses + place * C * C, C, C, C, C), kind, PRECISION)
        put(dR + at * R * V + first, (token * (H * R) + turn) * V, real, V - first, BV, tl.trans(dr))
        dSa *= tl.exp(coarse_end + fine_end)
        dSb *= tl.exp(coarse_end + fine_end)
        read = (scale * decay)[None, :] * dO
        dSa, dSb = add_outer(dSa, dSb, read, q + at * K, query, reads, K, HK, kind, PRECISION)
        erased = gate(erase + at * R, token * (H * R) + turn, real) * decay
        dSa, dSb = add_outer(dSa, dSb, -erased[None, :] * dr, k1, write, real, K, HK, kind, PRECISION)
    put_half(dS0 + own, 0, V - first, BV, K, HK, dSa)
    put_half(dS0 + own, HK, V - first, BV, K, HK, dSb)


@kernel
def value_gradients(
    q, k, v, beta, log_alpha, erase, limits, chunk_first, chunk_owner, do, dR, dstates, dv, dbeta, scale, T, N,
    H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BV: tl.constexpr, C: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv and dβ of one chunk: dW, as what was written and as how strongly."""
    chunk, h = tl.program_id(0), tl.program_id(1)
    n, place = sequence_of(chunk, T, chunk_first, chunk_owner, N, C, PACKED)
    if n >= N:
        return
    start, length, _ = sequence(n, T, limits, chunk_first, C, PACKED)
    kind: tl.constexpr = q.dtype.element_ty
    at, token, turn, real, begins, reads = rows(start, place * C, length, h, H, R, C)
    write, erased, k1 = token * (H * L) + turn, token * (H * R) + turn, k + at * L * K
    coarse, fine, coarse_end, fine_end = decays(log_alpha + at, token * H, begins)
    b = gate(beta + at * L, write, real)
    db = tl.zeros((C,), tl.float32)
    for first in range(0, V, BV):
        dW = tile(dR + at * R * V + first, erased * V, real, V - first, BV).to(tl.float32)
        db += tl.sum(dW * tile(v + at * L * V + first, write * V, real, V - first, BV), 1)
        put(dv + at * L * V + first, write * V, real, V - first, BV, b[:, None] * dW)
    put_gate(dbeta + at * L, write, real, db)
    G = gamma(coarse, fine, C)
    end = tl.exp((coarse_end - coarse) + (fine_end - fine))
    eps = gate(erase + at * R, erased, real)
    dS = dstates + (chunk.to(tl.int64) * H + h) * V * K
    for l in range(1, L // R):
        KK, QK = inside(q + at * K, k1, k1 + l * K, token * (H * K), write * K, real, reads, K, C, kind, PRECISION)
        P, A = QK * G, strict(eps[:, None] * KK * G, C)
        b = gate(beta + at * L + l, write, real)
        db = tl.zeros((C,), tl.float32)
        for first in range(0, V, BV):
            dW = tl.zeros((BV, C), tl.float32)
            for j in range(0, K, 32):
                s = tile(dS + first * K + j, tl.arange(0, BV) * K, tl.arange(0, BV) < V - first, K - j, 32)
                dW += dot(s, tl.trans(tile(k1 + l * K + j, write * K, real, K - j, 32)), kind, PRECISION)
            dW *= end[None, :]
            dO = tile(do + at * V + first, token * (H * V), reads, V - first, BV)
            dW += scale * dot(tl.trans(dO), P, kind, PRECISION)
            dr = tile(dR + at * R * V + first, erased * V, real, V - first, BV)
            dW = tl.trans(dW - dot(tl.trans(dr), A, kind, PRECISION))
            db += tl.sum(dW * tile(v + (at * L + l) * V + first, write * V, real, V - first, BV), 1)
            put(dv + (at * L + l) * V + first, write * V, real, V - first, BV, b[:, None] * dW)
        put_gate(dbeta + at * L + l, write, real, db)


@kernel
def direction(
    l, j, eps, end, G, dQ, dK1, q, k, v, beta, U, do, dR, dS, at, token, turn, real, reads, scale,
    FIRST: tl.constexpr, H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, kind: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One direction, channels j, …, j + BK − 1: dQᵀ and dK_1ᵀ grow; dK_lᵀ; the shares of dg, dε and the end."""
    write, erased, k1 = token * (H * L) + turn, token * (H * R) + turn, k + at * L * K
    query, kl = token * (H * K), k1 + l * K
    dP, dA, dK = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32), tl.zeros((BK, C), tl.float32)
    for first in range(0, V, BV):
        if FIRST:
            Y = tile(U + at * R * V + first, erased * V, real, V - first, BV)
        else:
            Y = tile(v + (at * L + l) * V + first, write * V, real, V - first, BV)
            Y = (gate(beta + at * L + l, write, real)[:, None] * Y).to(kind)
        i = tl.arange(0, BV)
        s = tile(dS + first * K + j, i * K, i < V - first, K - j, BK)
        dK += dot(tl.trans(s), tl.trans(Y), kind, PRECISION)
        dO = tile(do + at * V + first, token * (H * V), reads, V - first, BV)
        dP += dot(dO, tl.trans(Y), kind, PRECISION)
        dr = tile(dR + at * R * V + first, erased * V, real, V - first, BV)
        dA -= dot(dr, tl.trans(Y), kind, PRECISION)
    dP *= scale
    KK, QK = inside(q + at * K, k1, kl, query, write * K, real, reads, K, C, kind, PRECISION)
    KK = strict(KK * G, C)
    # Γ_ij grows with g_i and shrinks with g_j; rows of one token have no decay between them
    flow = tl.where(token[:, None] > token[None, :], dP * (QK * G) + dA * (eps[:, None] * KK), 0.0)
    dg = tl.sum(flow, 1) - tl.sum(flow, 0)
    deps = tl.sum(dA * KK, 1)
    dP = (dP * G).to(kind)
    dA = strict(eps[:, None] * dA * G, C).to(kind)
    Kl = tl.trans(tile(kl + j, write * K, real, K - j, BK))
    dK *= end[None, :]
    before = tl.sum(dK * Kl, 0)
    dQ += dot(Kl, tl.trans(dP), kind, PRECISION)
    dK1 += dot(Kl, tl.trans(dA), kind, PRECISION)
    dK += dot(tl.trans(tile(q + at * K + j, query, reads, K - j, BK)), dP, kind, PRECISION)
    dK += dot(tl.trans(tile(k1 + j, write * K, real, K - j, BK)), dA, kind, PRECISION)
    return dQ, dK1, dK, dg, deps, before


@kernel
def key_gradients(
    q, k, v, beta, log_alpha, erase, limits, chunk_first, chunk_owner, states, U, do, dR, dstates,
    dq, dk, dlog_alpha, derase, scale, T, N, size,
    H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The other gradients of one chunk and BK channels of the keys, given U, dR, and S before and dS after the chunk.

    dlog α and dε are sums over channels: each part of them leaves its own share, `size` numbers (R times as many) on.
    """
    # `own_work` with %: as it is there, this kernel spills on sm_100
    parts: tl.constexpr = (K + BK - 1) // BK
    chunk, h, j = tl.program_id(0) // parts, tl.program_id(1), tl.program_id(0) % parts * BK
    part = j // BK
    n, place = sequence_of(chunk, T, chunk_first, chunk_owner, N, C, PACKED)
    if n >= N:
        return
    start, length, _ = sequence(n, T, limits, chunk_first, C, PACKED)
    kind: tl.constexpr = q.dtype.element_ty
    own = (chunk.to(tl.int64) * H + h) * V * K
    at, token, turn, real, begins, reads = rows(start, place * C, length, h, H, R, C)
    write, erased = token * (H * L) + turn, token * (H * R) + turn
    coarse, fine, coarse_end, fine_end = decays(log_alpha + at, token * H, begins)
    decay = tl.exp(coarse + fine)
    end = tl.exp((coarse_end - coarse) + (fine_end - fine))
    eps = gate(erase + at * R, erased, real)
    # what reaches the state before the chunk
    dQ, dK1 = tl.zeros((BK, C), tl.float32), tl.zeros((BK, C), tl.float32)
    through = tl.zeros((BK,), tl.float32)
    for first in range(0, V, BV):
        i = tl.arange(0, BV)
        s = tile(states + own + first * K + j, i * K, i < V - first, K - j, BK)
        ds = tile(dstates + own + first * K + j, i * K, i < V - first, K - j, BK)
        through += tl.sum(s.to(tl.float32) * ds.to(tl.float32), 0)
        dO = tile(do + at * V + first, token * (H * V), reads, V - first, BV)
        dQ += dot(tl.trans(s), tl.trans(dO), kind, PRECISION)
        dr = tile(dR + at * R * V + first, erased * V, real, V - first, BV)
        dK1 += dot(tl.trans(s), tl.trans(dr), kind, PRECISION)
    dQ *= (scale * decay)[None, :]
    dg = tl.sum(dQ * tl.trans(tile(q + at * K + j, token * (H * K), reads, K - j, BK)), 0)
    deps = -decay * tl.sum(dK1 * tl.trans(tile(k + at * L * K + j, write * K, real, K - j, BK)), 0)
    dg += eps * deps
    dK1 *= -(eps * decay)[None, :]
    G = gamma(coarse, fine, C)
    once = tl.where(part == 0, 1.0, 0.0)  # what is a sum over all channels already comes with every part of them
    dQ, dK1, dK, dg_l, deps_l, before = direction(
        0, j, eps, end, G, dQ, dK1, q, k, v, beta, U, do, dR, dstates + own, at, token, turn, real, reads, scale,
        True, H, L, R, K, V, BK, BV, C, kind, PRECISION,
    )  # fmt: skip
    dK1 += dK
    dg += once * dg_l
    deps += once * deps_l
    for l in range(1, L // R):
        dQ, dK1, dK, dg_l, deps_l, before_l = direction(
            l, j, eps, end, G, dQ, dK1, q, k, v, beta, U, do, dR, dstates + own, at, token, turn, real, reads,
            scale, False, H, L, R, K, V, BK, BV, C, kind, PRECISION,
        )  # fmt: skip
        put(dk + (at * L + l) * K + j, write * K, real, K - j, BK, tl.trans(dK))
        dg += once * dg_l
        deps += once * deps_l
        before += before_l
    put(dq + at * K + j, token * (H * K), reads, K - j, BK, tl.trans(dQ))
    put(dk + at * L * K + j, write * K, real, K - j, BK, tl.trans(dK1))
    share = part.to(tl.int64) * size
    put_gate(derase + (share + at) * R, erased, real, deps)
    # e^{g_C − g_j} holds the decays after row j: row i gets what came before it, itself left out and not subtracted
    earlier = tl.sum(strict(before[None, :] + tl.zeros((C, C), tl.float32), C), 1)
    dlog = tl.cumsum(dg, 0, reverse=True) + earlier + tl.exp(coarse_end + fine_end) * tl.sum(through, 0)
    put_gate(dlog_alpha + share + at, token * H, begins, dlog)
