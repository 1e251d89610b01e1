"""The forward pass, one program per sequence, head and block of values, which walks over the chunks of its sequence.

Everything of a chunk is computed where its operands lie, in registers and shared memory: each operand is read once
and each output written once. With S the state before the chunk, X = (I + A_1)⁻¹ and W_l = β^l δ^l:

    U = X (W_1 − Σ_{l≥2} A_l W_l − E e^g K_1 Sᵀ)
    O = e^g Q Sᵀ + (Q K_1ᵀ ∘ Γ) U + Σ_{l≥2} (Q K_lᵀ ∘ Γ) W_l
    S ← e^{g_C} S + Uᵀ (e^{g_C − g} K_1) + Σ_{l≥2} W_lᵀ (e^{g_C − g} K_l)
"""

# mypy: ignore-errors
import triton.language as tl

from prism.ops.triton.compiling import kernel
from prism.ops.triton.delta.parts import decays, dot, gamma, gate, inverse, put, strict, tile


@kernel
def sequence(n, T, limits, chunk_first, C: tl.constexpr, PACKED: tl.constexpr):
    """First token, length and first chunk of sequence n."""
    if PACKED:
        start = tl.load(limits + n).to(tl.int64)
        length = (tl.load(limits + n + 1) - start).to(tl.int32)
        first = tl.load(chunk_first + n).to(tl.int64)
    else:
        start = n.to(tl.int64) * T
        length = T
        first = n.to(tl.int64) * ((T + C - 1) // C)
    return start, length, first


@kernel
def forward_walk(
    q, k, v, beta, log_alpha, erase, S0, limits, chunk_first, o, S_end, kept, scale, T,
    H: tl.constexpr, L: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    PACKED: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o and S_end; with KEEP the state before each chunk too."""
    n, h, first = tl.program_id(1), tl.program_id(2), tl.program_id(0) * BV
    start, length, chunk = sequence(n, T, limits, chunk_first, C, PACKED)
    kind: tl.constexpr = q.dtype.element_ty
    own = ((n * H + h).to(tl.int64) * V + first) * K
    # kept as Sᵀ [K, V]: no product then needs the state or a key transposed in registers
    S = tl.trans(tile(S0 + own, V - first, BV, K, K, BK)).to(tl.float32)
    for c in range(0, tl.cdiv(length, C)):
        left, at = length - c * C, (start + c * C) * H + h
        if KEEP:
            put(kept + (((chunk + c) * H + h) * V + first) * K, V - first, BV, K, K, BK, tl.trans(S))
        coarse, fine, coarse_end, fine_end = decays(log_alpha + at, left, C, H)
        decay = tl.exp(coarse + fine)
        end = tl.exp((coarse_end - coarse) + (fine_end - fine))
        eps = gate(erase + at, left, C, H)
        G = gamma(coarse, fine, C)
        K1 = tile(k + at * L * K, left, C, H * L * K, K, BK)
        X = inverse(strict(eps[:, None] * dot(K1, tl.trans(K1), kind, PRECISION) * G, C), C, PRECISION).to(kind)
        s16 = S.to(kind)
        V1 = tile(v + at * L * V + first, left, C, H * L * V, V - first, BV)
        R = gate(beta + at * L, left, C, H * L)[:, None] * V1
        R -= (eps * decay)[:, None] * dot(K1, s16, kind, PRECISION)
        for l in range(1, L):
            Kl = tile(k + (at * L + l) * K, left, C, H * L * K, K, BK)
            Vl = tile(v + (at * L + l) * V + first, left, C, H * L * V, V - first, BV)
            W = gate(beta + at * L + l, left, C, H * L)[:, None] * Vl
            R -= dot(strict(eps[:, None] * dot(K1, tl.trans(Kl), kind, PRECISION) * G, C), W, kind, PRECISION)
        U = dot(X, R, kind, PRECISION)
        Q = tile(q + at * K, left, C, H * K, K, BK)
        O = decay[:, None] * dot(Q, s16, kind, PRECISION)
        O += dot(dot(Q, tl.trans(K1), kind, PRECISION) * G, U, kind, PRECISION)
        S = S * tl.exp(coarse_end + fine_end) + dot(tl.trans(K1), end[:, None] * U, kind, PRECISION)
        for l in range(1, L):
            Kl = tile(k + (at * L + l) * K, left, C, H * L * K, K, BK)
            Vl = tile(v + (at * L + l) * V + first, left, C, H * L * V, V - first, BV)
            W = gate(beta + at * L + l, left, C, H * L)[:, None] * Vl
            O += dot(dot(Q, tl.trans(Kl), kind, PRECISION) * G, W, kind, PRECISION)
            S += dot(tl.trans(Kl), end[:, None] * W, kind, PRECISION)
        put(o + at * V + first, left, C, H * V, V - first, BV, scale * O)
    put(S_end + own, V - first, BV, K, K, BK, tl.trans(S))
