"""The forward pass, one program per sequence, head and block of values, which walks over the chunks of its sequence.

Everything of a chunk is computed where its operands lie, in registers and shared memory: memory gives each operand once
(caches give it again) and takes each output once. With S the state before the chunk, X = (I + A_1)⁻¹ and W_l = β^l δ^l:

    U = X (W_1 − Σ_{l≥2} A_l W_l − E e^g K_1 Sᵀ)
    O = e^g Q Sᵀ + (Q K_1ᵀ ∘ Γ) U + Σ_{l≥2} (Q K_lᵀ ∘ Γ) W_l
    S ← e^{g_C} S + Uᵀ (e^{g_C − g} K_1) + Σ_{l≥2} W_lᵀ (e^{g_C − g} K_l)

What is as long as a block of values is held transposed, one row per value: U, O and W then divide among the warps as
S does, and S goes from one product to the next without leaving its registers. S is held in two halves of the keys.
"""

# mypy: ignore-errors
import triton.language as tl

from prism.ops.triton.compiling import kernel
from prism.ops.triton.delta.chunk import add_outer, decays, dot, gamma, inside, inverse, product, strict, through_state
from prism.ops.triton.delta.places import (
    gate,
    half,
    own_work,
    put,
    put_half,
    put_matrix,
    rows,
    sequence,
    sequence_of,
    tile,
)


@kernel
def forward_walk(
    q, k, v, beta, log_alpha, erase, S0, limits, span_first, o, S_end, kept, scale, T,
    H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr,
    PACKED: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr, SOLVE: tl.constexpr,
):  # fmt: skip
    """o and S_end; with KEEP the state before each span of chunks too."""
    n, h, first = own_work(V, BV)
    start, length, span = sequence(n, T, limits, span_first, C * SPAN, PACKED)
    kind: tl.constexpr = q.dtype.element_ty
    HK: tl.constexpr = BK // 2
    own = ((n * H + h).to(tl.int64) * V + first) * K
    Sa = half(S0 + own, 0, V - first, BV, K, HK).to(tl.float32)
    Sb = half(S0 + own, HK, V - first, BV, K, HK).to(tl.float32)
    for c in range(0, tl.cdiv(length, C)):
        if KEEP:  # noqa: SIM102, a constant: without it the rest is not compiled
            if c % SPAN == 0:
                place = kept + (((span + c // SPAN) * H + h) * V + first) * K
                put_half(place, 0, V - first, BV, K, HK, Sa)
                put_half(place, HK, V - first, BV, K, HK, Sb)
        at, token, turn, real, begins, reads = rows(start, c * C, length, h, H, R, C)
        query, write, k1 = token * (H * K), token * (H * L) + turn, k + at * L * K
        coarse, fine, coarse_end, fine_end = decays(log_alpha + at, token * H, begins)
        decay = tl.exp(coarse + fine)
        end = tl.exp((coarse_end - coarse) + (fine_end - fine))
        eps = gate(erase + at * R, token * (H * R) + turn, real)
        G = gamma(coarse, fine, C)
        KK, QK = inside(q + at * K, k1, k1, query, write * K, real, reads, K, C, kind, PRECISION)
        P = (QK * G).to(kind)
        X = inverse(strict(eps[:, None] * KK * G, C), C, SOLVE).to(kind)
        r = -(eps * decay)[None, :] * through_state(Sa, Sb, k1, write * K, real, K, HK, kind, PRECISION)
        b = gate(beta + at * L, write, real)
        r += tl.trans(b[:, None] * tile(v + at * L * V + first, write * V, real, V - first, BV))
        out = decay[None, :] * through_state(Sa, Sb, q + at * K, query, reads, K, HK, kind, PRECISION)
        Sa *= tl.exp(coarse_end + fine_end)
        Sb *= tl.exp(coarse_end + fine_end)
        for l in range(1, L // R):
            KK, QK = inside(q + at * K, k1, k1 + l * K, query, write * K, real, reads, K, C, kind, PRECISION)
            b = gate(beta + at * L + l, write, real)
            W = tl.trans(b[:, None] * tile(v + (at * L + l) * V + first, write * V, real, V - first, BV))
            r -= dot(W, tl.trans(strict(eps[:, None] * KK * G, C)), kind, PRECISION)
            out += dot(W, tl.trans(QK * G), kind, PRECISION)
            Sa, Sb = add_outer(Sa, Sb, W * end[None, :], k1 + l * K, write * K, real, K, HK, kind, PRECISION)
        u = dot(r, tl.trans(X), kind, PRECISION)
        out += dot(u, tl.trans(P), kind, PRECISION)
        Sa, Sb = add_outer(Sa, Sb, u * end[None, :], k1, write * K, real, K, HK, kind, PRECISION)
        put(o + at * V + first, token * (H * V), reads, V - first, BV, tl.trans(scale * out))
    put_half(S_end + own, 0, V - first, BV, K, HK, Sa)
    put_half(S_end + own, HK, V - first, BV, K, HK, Sb)


@kernel
def restore(
    k, v, beta, log_alpha, erase, limits, span_first, span_owner, chunk_first, kept, states, inverses, U, T, N,
    H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr,
    PACKED: tl.constexpr, PRECISION: tl.constexpr, SOLVE: tl.constexpr,
):  # fmt: skip
    """From the state before a span: that before each of its chunks, with each chunk's (I + A_1)⁻¹ and U."""
    span, h, first = own_work(V, BV)
    n, place = sequence_of(span, T, span_first, span_owner, N, C * SPAN, PACKED)
    if n >= N:
        return
    start, length, chunk = sequence(n, T, limits, chunk_first, C, PACKED)
    kind: tl.constexpr = k.dtype.element_ty
    HK: tl.constexpr = BK // 2
    before = kept + ((span.to(tl.int64) * H + h) * V + first) * K
    Sa = half(before, 0, V - first, BV, K, HK).to(tl.float32)
    Sb = half(before, HK, V - first, BV, K, HK).to(tl.float32)
    for c in range(place * SPAN, tl.minimum((place + 1) * SPAN, tl.cdiv(length, C))):
        own = (chunk + c) * H + h
        put_half(states + (own * V + first) * K, 0, V - first, BV, K, HK, Sa)
        put_half(states + (own * V + first) * K, HK, V - first, BV, K, HK, Sb)
        at, token, turn, real, begins, _ = rows(start, c * C, length, h, H, R, C)
        write, k1 = token * (H * L) + turn, k + at * L * K
        coarse, fine, coarse_end, fine_end = decays(log_alpha + at, token * H, begins)
        end = tl.exp((coarse_end - coarse) + (fine_end - fine))
        eps = gate(erase + at * R, token * (H * R) + turn, real)
        G = gamma(coarse, fine, C)
        KK = product(k1, write * K, real, k1, write * K, real, K, C, kind, PRECISION)
        X = inverse(strict(eps[:, None] * KK * G, C), C, SOLVE).to(kind)
        if first == 0:
            put_matrix(inverses + own * C * C, C, C, C, C, X)
        r = through_state(Sa, Sb, k1, write * K, real, K, HK, kind, PRECISION)
        r *= -(eps * tl.exp(coarse + fine))[None, :]
        b = gate(beta + at * L, write, real)
        r += tl.trans(b[:, None] * tile(v + at * L * V + first, write * V, real, V - first, BV))
        Sa *= tl.exp(coarse_end + fine_end)
        Sb *= tl.exp(coarse_end + fine_end)
        for l in range(1, L // R):
            KK = product(k1, write * K, real, k1 + l * K, write * K, real, K, C, kind, PRECISION)
            b = gate(beta + at * L + l, write, real)
            W = tl.trans(b[:, None] * tile(v + (at * L + l) * V + first, write * V, real, V - first, BV))
            r -= dot(W, tl.trans(strict(eps[:, None] * KK * G, C)), kind, PRECISION)
            Sa, Sb = add_outer(Sa, Sb, W * end[None, :], k1 + l * K, write * K, real, K, HK, kind, PRECISION)
        u = dot(r, tl.trans(X), kind, PRECISION)
        put(U + at * R * V + first, (token * (H * R) + turn) * V, real, V - first, BV, tl.trans(u))
        Sa, Sb = add_outer(Sa, Sb, u * end[None, :], k1, write * K, real, K, HK, kind, PRECISION)
