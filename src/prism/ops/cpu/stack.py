"""One token through a whole stack of blocks in one compiled call: x + mixer(norm(x)), x + SwiGLU(norm(x)), last norm.

For a live user or for decoding: in PyTorch the forty small operations of a block cost far more than their arithmetic.
Each sequence is computed by itself, in the same order of additions whatever else is in the batch, so that its bits do
not depend on its neighbours. Maps are stored [in, out]: y += x_i · row i runs along contiguous memory.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from prism.ops.cpu.compiling import inner, kernel
from prism.ops.cpu.math import normal, sigmoid
from prism.ops.cpu.shared import dot_at
from prism.ops.cpu.vectors import conv_silu, layer_norm, linear, rms_norm, unit


class Rest(NamedTuple):
    """What every block has beside its mixer, for all blocks: [layers, …]; a stack without SwiGLU has hidden = 0."""

    norm: Any
    out: Any
    ffn_norm: Any
    ffn_in: Any
    ffn_out: Any
    last_norm: Any


class PrismWeights(NamedTuple):
    """PRISM's mixers: [layers, …]."""

    conv: Any  # [layers, W, D]; W = 0: the anchor is the token itself
    anchor_norm: Any  # [layers, 2, D]: scale and shift
    project: Any  # [layers, D, E]
    lift: Any  # [layers, rank, F]; rank = 0: full maps
    decay_bias: Any  # [layers, H]
    gain_bias: Any  # [layers, H, L, V]; L = 0: no gain
    read_norm: Any  # [layers, V]


class PrismShape(NamedTuple):
    """Where the parts of PRISM's projection lie, and which of its choices a stack has made; all integers."""

    H: int
    K: int
    V: int
    steps: int
    writes: int
    free_keys: int
    gate: int
    beta: int
    decay: int
    anchor: int
    """-1: the anchor is subtracted as it is."""
    low: int
    keys: int
    gain: int
    subtracts: int
    gelu: int


class GatedDeltaWeights(NamedTuple):
    """Gated DeltaNet's mixers: [layers, …]."""

    conv: Any  # [layers, W, 2HK + HV]
    project: Any  # [layers, D, E]
    decay_rate: Any  # [layers, H]: e^A
    decay_bias: Any  # [layers, H]
    read_norm: Any  # [layers, V]


@inner
def _rest(layer, rest, x, h, wide, o, y):  # type: ignore[no-untyped-def]
    """Adds the mixer's output map of o, then the SwiGLU."""
    D, hidden = x.shape[0], rest.ffn_out.shape[1]
    linear(o, rest.out[layer], h, D)
    for i in range(D):
        x[i] += h[i]
    if hidden:
        rms_norm(x, 0, D, rest.ffn_norm[layer], h)
        linear(h, rest.ffn_in[layer], wide, 2 * hidden)
        for i in range(hidden):
            y[i] = wide[i] * sigmoid(wide[i]) * wide[hidden + i]
        linear(y, rest.ffn_out[layer], h, D)
        for i in range(D):
            x[i] += h[i]


@inner
def _read(part, gate, V, head, weight, o):  # type: ignore[no-untyped-def]
    """In place: RMSNorm of one head's read, gated by SiLU."""
    begin = head * V
    rms_norm(o, begin, begin + V, weight, o)
    for i in range(V):
        g = part[gate + begin + i]
        o[begin + i] *= g * sigmoid(g)


@inner
def _refine(head, shape, part, lifted, gain_bias, u, delta):  # type: ignore[no-untyped-def]
    """δ^(1..L) of one head into delta [L, V]; `delta[L]` holds the residual."""
    H, K, V = shape.H, shape.K, shape.V
    v, L = 2 * H * K + head * V, shape.steps
    for i in range(V):
        r = part[v + i]
        if shape.subtracts:
            r -= u[head * V + i] if shape.anchor < 0 else part[shape.anchor + head * V + i]
        delta[L, i] = r
    for l in range(L):
        at = shape.gain + (head * L + l) * V
        for i in range(V):
            a = delta[L, i]
            if gain_bias.shape[1]:
                a = a * (lifted[at + i] + gain_bias[head, l, i])
            if shape.gelu:
                a = a * normal(a)[0]
            delta[l, i] = a
        if shape.subtracts:
            for i in range(V):
                delta[L, i] -= delta[l, i]


@inner
def _recur(S, S_next, k, erased, betas, delta, alpha, q, q_at, o, o_at):  # type: ignore[no-untyped-def]
    """Decay, erase along k[0], write the L terms, read: one head; k [L, K], delta [≥ L, V]."""
    V, K = S.shape
    for i in range(V):
        row, to = S[i], S_next[i]
        found = dot_at(row, k[0], 0, K)
        first = betas[0] * delta[0, i] - alpha * erased * found
        for j in range(K):
            to[j] = alpha * row[j] + first * k[0, j]
        for l in range(1, k.shape[0]):
            w = betas[l] * delta[l, i]
            for j in range(K):
                to[j] = to[j] + w * k[l, j]
        o[o_at + i] = dot_at(to, q, q_at, K)


@inner
def _prism_block(layer, shape, weights, rest, x, history, history_next, S, S_next, scratch):  # type: ignore[no-untyped-def]
    h, u, part, lifted, o, wide, y, k, betas, delta = scratch
    H, K, V, D = shape.H, shape.K, shape.V, x.shape[0]
    rms_norm(x, 0, D, rest.norm[layer], h)
    if weights.conv.shape[1]:
        conv_silu(h, history, history_next, weights.conv[layer], u)
    else:
        for i in range(D):
            u[i] = h[i]
    layer_norm(u, weights.anchor_norm[layer])
    linear(u, weights.project[layer], part, part.shape[0])
    solved = part
    if weights.lift.shape[1]:
        rank = weights.lift.shape[1]
        for i in range(rank):
            h[i] = part[shape.low + i]
        linear(h[:rank], weights.lift[layer], lifted, lifted.shape[0])
        solved = lifted
    for head in range(H):
        for j in range(K):
            k[0, j] = part[H * K + head * K + j]
        for l in range(1, shape.writes):
            free = min(l, shape.free_keys)
            at = shape.keys + (head * shape.free_keys + free - 1) * K
            for j in range(K):
                k[l, j] = solved[at + j] if free else part[H * K + head * K + j]
        for l in range(shape.writes):
            unit(k[l], 0, K)
            betas[l] = sigmoid(part[shape.beta + head * shape.writes + l])
        alpha = sigmoid(part[shape.decay + head] + weights.decay_bias[layer, head])
        unit(part, head * K, K)
        if shape.steps:
            _refine(head, shape, part, solved, weights.gain_bias[layer], u, delta)
        else:
            for i in range(V):
                delta[0, i] = part[2 * H * K + head * V + i]
        _recur(S[head], S_next[head], k, betas[0], betas, delta, alpha, part, head * K, o, head * V)
        _read(part, shape.gate, V, head, weights.read_norm[layer], o)
    _rest(layer, rest, x, h, wide, o, y)


@inner
def _gated_delta_block(layer, shape, weights, rest, x, history, history_next, S, S_next, scratch):  # type: ignore[no-untyped-def]
    h, u, part, _, o, wide, y, k, betas, delta = scratch
    H, K, V, D = shape.H, shape.K, shape.V, x.shape[0]
    mixed = 2 * H * K + H * V
    rms_norm(x, 0, D, rest.norm[layer], h)
    linear(h, weights.project[layer], part, part.shape[0])
    conv_silu(part[:mixed], history, history_next, weights.conv[layer], u)
    for head in range(H):
        for j in range(K):
            k[0, j] = u[H * K + head * K + j]
        unit(k[0], 0, K)
        unit(u, head * K, K)
        for i in range(V):
            delta[0, i] = u[2 * H * K + head * V + i]
        betas[0] = sigmoid(part[shape.beta + head])
        z = part[shape.decay + head] + weights.decay_bias[layer, head]
        softplus = max(z, x.dtype.type(0)) + math.log1p(math.exp(-abs(z)))
        alpha = x.dtype.type(math.exp(-weights.decay_rate[layer, head] * softplus))
        _recur(S[head], S_next[head], k, betas[0], betas, delta, alpha, u, head * K, o, head * V)
        _read(part, shape.gate, V, head, weights.read_norm[layer], o)
    _rest(layer, rest, x, h, wide, o, y)


@inner
def _scratch(like, D, shape, E, F, mixed, hidden):  # type: ignore[no-untyped-def]
    return (
        np.empty(max(D, F), like.dtype),
        np.empty(max(D, mixed), like.dtype),
        np.empty(E, like.dtype),
        np.empty(F, like.dtype),
        np.empty(shape.H * shape.V, like.dtype),
        np.empty(2 * hidden, like.dtype),
        np.empty(hidden, like.dtype),
        np.empty((shape.writes, shape.K), like.dtype),
        np.empty(shape.writes, like.dtype),
        np.empty((shape.steps + 1, shape.V), like.dtype),
    )


@kernel
def prism_stack(x, rows, to, shape, weights, rest, before, after, y, begin, end):  # type: ignore[no-untyped-def]
    """y[n] = features of x[n] for n = begin, …, end − 1; states are rows[n] of `before` and, next, to[n] of `after`.

    `before` and `after` are (histories, S), each one array per block; they may be the same arrays, and the rows too.
    """
    D, F = x.shape[1], weights.lift.shape[2]
    scratch = _scratch(x, D, shape, weights.project.shape[2], F, 0, rest.ffn_out.shape[1])
    for n in range(begin, end):
        m, then = rows[n], to[n]
        for i in range(D):
            y[n, i] = x[n, i]
        for layer in range(len(before[1])):
            _prism_block(
                layer, shape, weights, rest, y[n], before[0][layer][m], after[0][layer][then], before[1][layer][m],
                after[1][layer][then], scratch,
            )  # fmt: skip
        rms_norm(y[n], 0, D, rest.last_norm, y[n])


@kernel
def gated_delta_stack(x, rows, to, shape, weights, rest, before, after, y, begin, end):  # type: ignore[no-untyped-def]
    """The same for Gated DeltaNet."""
    D = x.shape[1]
    mixed = 2 * shape.H * shape.K + shape.H * shape.V
    scratch = _scratch(x, D, shape, weights.project.shape[2], 0, mixed, rest.ffn_out.shape[1])
    for n in range(begin, end):
        m, then = rows[n], to[n]
        for i in range(D):
            y[n, i] = x[n, i]
        for layer in range(len(before[1])):
            _gated_delta_block(
                layer, shape, weights, rest, y[n], before[0][layer][m], after[0][layer][then], before[1][layer][m],
                after[1][layer][then], scratch,
            )  # fmt: skip
        rms_norm(y[n], 0, D, rest.last_norm, y[n])
