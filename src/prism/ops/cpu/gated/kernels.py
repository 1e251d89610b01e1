"""The recurrence with a decay per channel, forward and backward, for a range of (sequence, head) pairs; compiled.

Backward, with b_t the gradient of S_t a_t, B = [b; dR] and the gradient dS of the state after a chunk:

    dW = Pᵀ b + Y_end dS            dR = −dU − A_eᵀ dR from the last row to the first        dV += A_kᵀ dR
    dM = B Wᵀ        dX̄ = B Sᵀ        dY_end = W dSᵀ        dS ← diag(e^{g_C}) dS + X̄ᵀ B

and from dM through the running products of decays back to x, y and log α, as sums only.
"""

from collections import namedtuple

from prism.ops.cpu.compiling import inner, kernel
from prism.ops.cpu.gated.chunk import (
    advance,
    axpy,
    decay_row,
    decay_rows,
    load,
    load_rows,
    multiply,
    prepare,
    read,
    write,
)
from prism.ops.cpu.shared import KEEP, C, copy_state, copy_state_t, dot
from prism.ops.cpu.tile import add_product_t, set_product, set_transpose

Grads = namedtuple("Grads", "a k v log_alpha find erase")  # [T, H, …]
Scratch = namedtuple("Scratch", "dS B W_t S_t dW dM dX dY dlog dy")


def scratch_shapes(G: int, K: int, V: int) -> Scratch:
    """The shapes of the backward's own arrays, K and V padded."""
    return Scratch(
        dS=(K, V),
        B=(G * C, V),  # b, dR
        W_t=(V, G * C),
        S_t=(V, K),  # Sᵀ, then dSᵀ
        dW=(G * C, V),
        dM=(G * C, G * C),
        dX=(G * C, K),
        dY=(G * C, K),
        dlog=(C + 1, K),
        dy=(1, K),
    )


@inner
def _store(to, x, first_row, first, count, h, scale):  # type: ignore[no-untyped-def]
    for i in range(count):
        for c in range(to.shape[2]):
            to[first + i, h, c] = scale * x[first_row + i, c]


@inner
def _spread(x, z):  # type: ignore[no-untyped-def]
    """S_tᵀ-side read in dX: diag(prefix) b Sᵀ + Σ_{j≤i} (b_i · v_j) y_j decayed to i."""
    set_transpose(z.S_t, x.S)
    set_product(z.dX, z.B, z.S_t)
    for i in range(C):
        multiply(z.dX, i, z.dX, i, x.prefix, i + 1)
    set_transpose(z.W_t, x.W)
    set_product(z.dM, z.B, z.W_t)
    W, O, y = z.dM, z.dX, x.y
    for j in range(C):
        decay_row(y, x.Y, j, x.alpha)
        for i in range(j, C):
            axpy(O, i, W[i, j], y, i)


@kernel
def forward_range(parts, z, tokens, b, by_value, bounds, S0, scale, o, S_end, kept, kept_at, begin, end):  # type: ignore[no-untyped-def]
    """Outputs and final states of pairs begin, …, end − 1, in the scratch memory `parts` and z.

    Sequence n runs from token bounds[n] to bounds[n + 1]; its state before token 64·j goes to kept[kept_at[n] + j − 1],
    unless there is no place for it. Where `by_value`, b are the queries and tokens.a is not used.
    """
    H, x = S0.shape[1], parts[0]
    for pair in range(begin, end):
        n, h = pair // H, pair % H
        copy_state_t(x.S, S0[n, h])
        for t in range(bounds[n], bounds[n + 1], C):
            count = min(C, bounds[n + 1] - t)
            j = (t - bounds[n]) // KEEP
            if kept.shape[0] > 0 and j > 0 and (t - bounds[n]) % KEEP == 0:
                copy_state(kept[kept_at[n] + j - 1, h], x.S)
            load(x, tokens, t, count, h)
            prepare(x)
            if by_value:
                load_rows(z.B, 0, b, t, count, h, scale)
                _spread(x, z)
                _store(o, z.dX, 0, t, count, h, S0.dtype.type(1))
            else:
                write(x)
                read(x)
                _store(o, x.O, 0, t, count, h, scale)
            advance(x.S, x.total, x.Y_end, x.W)
        copy_state_t(S_end[n, h], x.S)


@inner
def _substitute_back(dR, dU, A):  # type: ignore[no-untyped-def]
    """dR = −dU − A_eᵀ dR, from the last row to the first."""
    for i in range(C - 1, -1, -1):
        for c in range(dR.shape[1]):
            dR[i, c] = -dU[i, c]
        for j in range(i + 1, C):
            axpy(dR, i, -A[j, C + i], dR, j)


@inner
def _solve_back(x, z):  # type: ignore[no-untyped-def]
    """dW, with its second half turned into dR in B."""
    set_product(z.dW, x.Y_end, z.dS)
    add_product_t(z.dW, x.M[:C], z.B[:C], 0, 1)
    if z.B.shape[0] > C:
        _substitute_back(z.B[C:], z.dW[C:], x.M[C:])
        add_product_t(z.dW[:C], x.M[C:], z.B[C:], 0, 1)


@inner
def _past_start(dX, X_bar, prefix, dlog):  # type: ignore[no-untyped-def]
    """From X̄ back to X; the last row of dlog collects what flows from the chunk's start past every token up to i."""
    K = dX.shape[1]
    for i in range(C - 1, -1, -1):
        for c in range(K):
            dlog[C, c] += dX[i, c] * X_bar[i, c]
        for c in range(K):
            dlog[i, c] = dlog[C, c]
        multiply(dX, i, dX, i, prefix, i + 1)
        if dX.shape[0] > C:
            for c in range(K):
                dlog[C, c] += dX[C + i, c] * X_bar[C + i, c]
            multiply(dX, C + i, dX, C + i, prefix, i)


@inner
def _to_ends(x, z):  # type: ignore[no-untyped-def]
    """What passes the chunk's ends: dX, dY and d log α from S and dS, and dS before the chunk."""
    S, dS, dlog, total = x.S, z.dS, z.dlog, x.total
    set_transpose(z.S_t, S)
    set_product(z.dX, z.B, z.S_t)
    set_transpose(z.S_t, dS)
    set_product(z.dY, x.W, z.S_t)
    for c in range(S.shape[0]):
        dlog[C, c] = total[0, c] * dot(S, c, dS, c)
    _past_start(z.dX, x.X_bar, x.prefix, dlog)
    decay_rows(dS, total)
    add_product_t(dS, x.X_bar, z.B, 0, 1)


@inner
def _past_token(dy, p, X, y, alpha, dlog, i):  # type: ignore[no-untyped-def]
    """From y_i = α_i y_{i-1} back: takes in what row i of M gives, and hands d log α_i its share."""
    for c in range(y.shape[1]):
        d = dy[0, c] + p * X[i, c]
        dlog[i, c] += d * y[i, c]
        dy[0, c] = d * alpha[i, c]


@inner
def _pairs_back(x, z):  # type: ignore[no-untyped-def]
    """Through M: each row of Y from where it has decayed most back to its own token."""
    X, Y, y, alpha = x.X, x.Y, x.y, x.alpha
    dM, dX, dY, dlog, dy = z.dM, z.dX, z.dY, z.dlog, z.dy
    GC, K = X.shape
    for j in range(GC):
        own = j % C
        decay_row(y, Y, j, alpha)
        for c in range(K):
            dy[0, c] = dY[j, c]
        for i in range(C - 1, own, -1):
            _past_token(dy, dM[i, j], X, y, alpha, dlog, i)
            axpy(dX, i, dM[i, j], y, i)
            if GC > C:
                axpy(dy, 0, dM[C + i, j], X, C + i)
                axpy(dX, C + i, dM[C + i, j], y, i - 1)
        axpy(dy, 0, dM[own, j], X, own)
        axpy(dX, own, dM[own, j], Y, j)
        for c in range(K):
            dY[j, c] = dy[0, c]


@inner
def _recompute(parts, tokens, start, stop, h):  # type: ignore[no-untyped-def]
    """The chunks from one kept state on, which the first part holds, each in its own memory."""
    for t in range(start, stop, C):
        x = parts[(t - start) // C]
        load(x, tokens, t, min(C, stop - t), h)
        prepare(x)
        write(x)
        if t + C < stop:
            after = parts[(t - start) // C + 1].S
            copy_state(after, x.S)
            advance(after, x.total, x.Y_end, x.W)


@inner
def _chunk_back(x, z, b, t, count, h, scale):  # type: ignore[no-untyped-def]
    """All gradients of one chunk, in z."""
    load_rows(z.B, 0, b, t, count, h, scale)
    _solve_back(x, z)
    set_transpose(z.W_t, x.W)
    set_product(z.dM, z.B, z.W_t)
    _to_ends(x, z)
    _pairs_back(x, z)


@inner
def _store_grads(to, z, t, count, h):  # type: ignore[no-untyped-def]
    one = z.dS.dtype.type(1)
    _store(to.k, z.dY, 0, t, count, h, one)
    _store(to.v, z.dW, 0, t, count, h, one)
    _store(to.log_alpha, z.dlog, 0, t, count, h, one)
    if z.dX.shape[0] > C:
        _store(to.find, z.dX, C, t, count, h, one)
        _store(to.erase, z.dY, C, t, count, h, one)


@kernel
def backward_range(parts, z, tokens, b, by_value, bounds, S0, scale, kept, kept_at, dS_end, to, dS0, begin, end):  # type: ignore[no-untyped-def]
    """Gradients of pairs begin, …, end − 1. tokens.a: queries, b: gradients of outputs; `by_value`: reversed."""
    H, one = S0.shape[1], S0.dtype.type(1)
    for pair in range(begin, end):
        n, h = pair // H, pair % H
        first, last = bounds[n], bounds[n + 1]
        copy_state_t(z.dS, dS_end[n, h])
        for j in range((last - first + KEEP - 1) // KEEP - 1, -1, -1):
            start, stop = first + j * KEEP, min(first + (j + 1) * KEEP, last)
            if j > 0:
                copy_state(parts[0].S, kept[kept_at[n] + j - 1, h])
            else:
                copy_state_t(parts[0].S, S0[n, h])
            _recompute(parts, tokens, start, stop, h)
            for part in range((stop - start + C - 1) // C - 1, -1, -1):
                x, t = parts[part], start + part * C
                count = min(C, stop - t)
                _chunk_back(x, z, b, t, count, h, scale)
                _store_grads(to, z, t, count, h)
                if by_value:
                    read(x)
                    _store(to.a, x.O, 0, t, count, h, scale)
                else:
                    _store(to.a, z.dX, 0, t, count, h, one)
        copy_state_t(dS0[n, h], z.dS)
