"""The gradients of the recurrence, a chunk at a time from the last to the first, for a range of (sequence, head) pairs.

States are kept every 64 tokens only; those before the chunks in between are computed anew, in cache. With dO and the
gradient dS of the state after a chunk:

    dY = Pᵀ dO + K_end dSᵀ           G = −dR, with (I + E KK_1)ᵀ dR = dY_1 the gradient of the first write
    dW_1 = −G, dW_l = dY_l + (E KK_l)ᵀ G                    dε = ⟨Z, G⟩ row by row
    M = [dO; G] Yᵀ ∘ Γ (its second half also times ε, strictly lower), the gradients of Q Kᵀ and K_1 Kᵀ
    [dQ; dK_1] = M K + e^g [dO; ε G] S        dK += Mᵀ [Q; K_1] + e^{g_C − g} Y dS
    dS ← e^{g_C} dS + dOᵀ (e^g Q) + Gᵀ (ε e^g K_1)

d log α_t is all that flows past token t: F_ij = (dP ∘ P + dA ∘ A)_ij from token j to a later i, from the state before
the chunk, and to the state after it. It is summed as such, over j < t ≤ i, not as a difference of running sums, which
would leave rounding errors in the place of the small gradient of a strong decay.
"""

from collections import namedtuple

from prism.ops.cpu.compiling import inner, inner_sum, kernel
from prism.ops.cpu.delta.chunk import DECAY, END, advance, decay_row, erasures, load, prepare, strides, write
from prism.ops.cpu.shared import KEEP, C, copy_state, copy_state_t, dot
from prism.ops.cpu.tile import add_product_t, add_transpose, set_product, set_transpose

Grads = namedtuple("Grads", "q k v beta log_alpha erase")  # [T, H, …]
Scratch = namedtuple("Scratch", "dS D Dt Yt dY M dX DS YdS rows flow wide")


def scratch_shapes(G: int, L: int, K: int, V: int) -> Scratch:
    """The shapes of the backward's own arrays for one chunk, K and V padded."""
    return Scratch(
        dS=(K, V),
        D=((1 + G) * C, V),  # dO, G
        Dt=(V, (1 + G) * C),
        Yt=(V, L * C),
        dY=(L * C, V),  # then dW
        M=((1 + G) * C, L * C),
        dX=((1 + L) * C, K),  # dQ, dK_1, …, dK_L
        DS=(K, (1 + G) * C),  # ([dO; G] S)ᵀ
        YdS=(K, L * C),  # (Y dS)ᵀ
        rows=((1 + G + L) * C,),  # e^g, ε e^g, then e^{g_C − g} for each step
        flow=(C + 1, C),  # F; the last row is what flows to the state after the chunk
        wide=(L * C,),  # a row of F before its directions are summed
    )


@inner_sum
def _inner(S, dS):  # type: ignore[no-untyped-def]
    """⟨S, dS⟩, summed within rows first: shorter sums round less."""
    total = S.dtype.type(0)
    for i in range(S.shape[0]):
        total += dot(S, i, dS, i)
    return total


@inner
def _load_grad(D, do, first, count, h, scale):  # type: ignore[no-untyped-def]
    for c in range(count):
        for i in range(do.shape[2]):
            D[c, i] = scale * do[first + c, h, i]
    for c in range(count, C):
        D[c] = 0


@inner
def _writes_back(x, part, y):  # type: ignore[no-untyped-def]
    """dW of all steps, and G."""
    KK, eps, Y, dY, M, erasing = x.PK[part, C:], x.eps[part], x.Y[part], y.dY, y.M, erasures(x)
    E, dO, G = erasing * C, y.D[:C], y.D[C:]
    by_step, by_token = strides(erasing, M.shape[1] // C)
    set_product(dY, x.K_end[part], y.dS)
    for j in range(C):
        y.flow[C, j] = 0
        for l in range(M.shape[1] // C):
            row = l * by_step + j * by_token
            y.flow[C, j] += dot(Y, row, dY, row)
    add_product_t(dY, x.PK[part, :C], dO, 0, 1)
    for i in range(E):
        for j in range(M.shape[1]):
            M[i, j] = eps[i] * KK[i, j]
    for first in range(E - C, -1, -C):
        for i in range(first + C - 1, first - 1, -1):  # rows j > i of dY are those of dR by now
            for n in range(G.shape[1]):
                G[i, n] = -dY[i, n]
            for j in range(i + 1, first + C):
                a = M[j, i]
                for n in range(G.shape[1]):
                    G[i, n] += a * dY[j, n]
            for n in range(G.shape[1]):
                dY[i, n] = -G[i, n]
        if first > 0:
            add_product_t(dY[:first], M[first : first + C], G[first : first + C], 0, 1)
    if M.shape[1] > E:
        add_product_t(dY[E:], M[:E], G, E, 1)


@inner
def _keys_back(x, part, y, S):  # type: ignore[no-untyped-def]
    """dQ and dK of all steps."""
    X, gates, eps, M, rows = x.X[part], x.gates[part], x.eps[part], y.M, y.rows
    G, L = erasures(x), y.M.shape[1] // C
    E = G * C
    set_transpose(y.Yt, x.Y[part])
    set_transpose(y.Dt, y.D)
    set_product(M, y.D, y.Yt)
    if G > 1:
        _pairs_back_each(x.PK[part], x.gamma[part], eps, y)
    else:
        _pairs_back(x.PK[part], x.gamma[part], eps, y)
    by_token = strides(G, L)[1]
    for i in range(C):
        rows[i] = gates[DECAY, i]
    for i in range(E):
        rows[C + i] = eps[i] * gates[DECAY, i // G]
    for i in range(M.shape[1]):
        rows[C + E + i] = gates[END, i // by_token % C]
    set_product(y.dX[: C + E], M, X[C:])
    y.dX[C + E :] = 0
    add_product_t(y.dX[C:], M, X[: C + E], 0, 1)
    set_product(y.DS, S, y.Dt)
    set_product(y.YdS, y.dS, y.Yt)
    add_transpose(y.dX[: C + E], y.DS, rows)
    add_transpose(y.dX[C:], y.YdS, rows[C + E :])


@inner
def _pairs_back(PK, gamma, gates_eps, y):  # type: ignore[no-untyped-def]
    """M, and F of earlier tokens; only the first direction erases."""
    M = y.M
    for i in range(C):
        eps = gates_eps[i]
        y.flow[i] = 0
        for l in range(0, M.shape[1], C):
            for j in range(C):
                flow = M[i, l + j] * PK[i, l + j] + eps * M[C + i, l + j] * PK[C + i, l + j]
                y.flow[i, j] += flow if j < i else 0
                M[i, l + j] = M[i, l + j] * gamma[i, j] if j <= i else 0
                M[C + i, l + j] = M[C + i, l + j] * (eps * gamma[i, j]) if j < i else 0


@inner
def _pairs_back_each(PK, gamma, eps, y):  # type: ignore[no-untyped-def]
    """M, and F of earlier tokens; every direction erases, and columns come token by token."""
    M, wide = y.M, y.wide
    L = M.shape[1] // C
    for i in range(C):
        for column in range(M.shape[1]):
            wide[column] = M[i, column] * PK[i, column]
        decay_row(M[i], gamma[i], L, (i + 1) * L)
        for row in range(i * L, (i + 1) * L):
            for column in range(M.shape[1]):
                wide[column] += eps[row] * M[C + row, column] * PK[C + row, column]
                M[C + row, column] *= eps[row]
            decay_row(M[C + row], gamma[i], L, row)
        for j in range(C):
            y.flow[i, j] = 0
            if j < i:
                for column in range(j * L, (j + 1) * L):
                    y.flow[i, j] += wide[column]


@inner
def _state_back(x, part, y):  # type: ignore[no-untyped-def]
    """dS before the chunk."""
    Xg, gates, eps = x.Xg[part], x.gates[part], x.eps[part]
    for i in range(C * erasures(x)):
        for j in range(Xg.shape[1]):
            Xg[C + i, j] *= eps[i]
    add_product_t(y.dS, Xg, y.D, 0, gates[DECAY, C - 1])


@inner
def _decays_back(x, part, y, dlog_alpha, first, count, h):  # type: ignore[no-untyped-def]
    """d log α; dS is still that after the chunk."""
    Z, D, gates, eps, flow = x.Z[part], y.D, x.gates[part], x.eps[part], y.flow
    G = erasures(x)
    past = flow[C]  # for each token, what flows from it to t and beyond
    state = gates[DECAY, C - 1] * _inner(x.S[part], y.dS)  # the same for the state before the chunk
    for t in range(C - 1, -1, -1):
        read = dot(Z, t, D, t)
        for row in range(C + t * G, C + (t + 1) * G):
            read += eps[row - C] * dot(Z, row, D, row)
        state += read
        total = state
        for j in range(C):
            past[j] += flow[t, j]
            total += past[j] if j < t else 0
        if t < count:
            dlog_alpha[first + t, h] = total


@inner
def _store(x, part, y, tokens, grads, first, count, h):  # type: ignore[no-untyped-def]
    """The chunk's gradients to where the caller wants them."""
    Z, dX, dY = x.Z[part], y.dX, y.dY
    G, L, K, V = erasures(x), tokens.k.shape[2], tokens.q.shape[2], tokens.v.shape[3]
    by_step, by_token = strides(G, L)
    for c in range(count):
        t = first + c
        for l in range(G):
            row = C + c * G + l
            grads.erase[t, h, l] = dot(Z, G * C + row, y.D, row)
        for i in range(K):
            grads.q[t, h, i] = dX[c, i]
        for l in range(L):
            row, beta = l * by_step + c * by_token, tokens.beta[t, h, l]
            grads.beta[t, h, l] = dot(tokens.v[t, h], l, dY, row)
            for i in range(K):
                grads.k[t, h, l, i] = dX[C + row, i]
            for i in range(V):
                grads.v[t, h, l, i] = beta * dY[row, i]


@inner
def _recompute(x, tokens, first, last, h):  # type: ignore[no-untyped-def]
    """The chunks of tokens first, …, last − 1, at most 64, and the states before each; the first state is given."""
    for part in range((last - first + C - 1) // C):
        t = first + part * C
        load(x, part, tokens, t, min(C, last - t), h)
        prepare(x, part)
        write(x, part, x.S[part])
        if t + C < last:
            copy_state(x.S[part + 1], x.S[part])
            advance(x, part, x.S[part + 1])


@kernel
def backward_range(x, y, tokens, bounds, S0, scale, kept, kept_at, do, dS_end, grads, dS0, begin, end):  # type: ignore[no-untyped-def]
    """All gradients of pairs begin, …, end − 1, in the scratch memories x (PARTS chunks) and y."""
    H, S = S0.shape[1], x.S
    for pair in range(begin, end):
        n, h = pair // H, pair % H
        copy_state_t(y.dS, dS_end[n, h])
        for block in range((bounds[n + 1] - bounds[n] + KEEP - 1) // KEEP - 1, -1, -1):
            first = bounds[n] + block * KEEP
            last = min(first + KEEP, bounds[n + 1])
            if block > 0:
                copy_state(S[0], kept[kept_at[n] + block - 1, h])
            else:
                copy_state_t(S[0], S0[n, h])
            _recompute(x, tokens, first, last, h)
            for part in range((last - first + C - 1) // C - 1, -1, -1):
                t = first + part * C
                count = min(C, last - t)
                _load_grad(y.D, do, t, count, h, scale)
                _writes_back(x, part, y)
                _keys_back(x, part, y, S[part])
                _decays_back(x, part, y, grads.log_alpha, t, count, h)
                _state_back(x, part, y)
                _store(x, part, y, tokens, grads, t, count, h)
        copy_state_t(dS0[n, h], y.dS)
