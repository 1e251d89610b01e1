"""−log softmax of a catalogue at each token's target, a block of logits at a time; they never reach memory.

The forward leaves each token's normaliser; the backward computes the logits twice more, for the gradient of the tokens
and for that of the items, and no sum crosses programs.

With ADDED, Σ_k c_nk f_nk(i) is added to the logits (`prism.ops.additions.Additions`): rows of a bank as they are,
entries, which come sorted by tiles, as products of ones at their tokens and ones at their items.
"""

# mypy: ignore-errors
import triton.language as tl

from prism.ops.triton.around.rows import load_block, store_rows
from prism.ops.triton.compiling import kernel


@kernel
def of_tokens(pointer, first, N, other, BN: tl.constexpr, stride: tl.constexpr = 1):
    """One number per token."""
    n = first + tl.arange(0, BN)
    return tl.load(pointer + n.to(tl.int64) * stride, mask=n < N, other=other)


@kernel
def some_entries(entries, values, m, end, first, i, E, BN: tl.constexpr, BI: tl.constexpr):
    """Of entries m [·] before `end`: ones at their tokens [·, BN] and items [·, BI], their kinds and values."""
    real = m < end
    n = tl.load(entries + m, mask=real, other=0) - first
    item = tl.load(entries + E + m, mask=real, other=0) - i
    kind = tl.load(entries + 2 * E + m, mask=real, other=0)
    at_token = tl.where(n[:, None] == tl.arange(0, BN)[None, :], 1.0, 0.0)
    at_item = tl.where(item[:, None] == tl.arange(0, BI)[None, :], 1.0, 0.0)
    return at_token, at_item, n, kind, tl.load(values + m, mask=real, other=0.0)


@kernel
def entries_of(tiles, first, i, N, BN: tl.constexpr, BI: tl.constexpr, GRAIN: tl.constexpr):
    """The first entry of a tile, and the one after its last; `tiles` [items / BI, tokens / GRAIN + 1]."""
    parts = tl.cdiv(N, GRAIN).to(tl.int64)
    own = tiles + (i // BI) * (parts + 1)
    return tl.load(own + first // GRAIN), tl.load(own + tl.minimum((first + BN) // GRAIN, parts))


@kernel
def of_bank(bank, rows, f, first, i, N, I, F: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr):
    """[BN, BI] of each token's row f of the bank."""
    n, item = first + tl.arange(0, BN), i + tl.arange(0, BI)
    row = tl.load(rows + n * F + f, mask=n < N, other=0).to(tl.int64)
    mask = (n < N)[:, None] & (item < I)[None, :]
    return tl.load(bank + row[:, None] * I + item[None, :], mask=mask, other=0.0).to(tl.float32)


@kernel
def logits(
    tokens, items, bias, added, first, i, N, I,
    BN: tl.constexpr, BI: tl.constexpr, KF: tl.constexpr, F: tl.constexpr, GRAIN: tl.constexpr,
    BIASED: tl.constexpr, ADDED: tl.constexpr, KIND: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """[BN, BI] in float32; −∞ beyond the last item."""
    z = tl.dot(tokens.to(KIND), tl.trans(items.to(KIND)), input_precision=P, out_dtype=tl.float32)
    item = i + tl.arange(0, BI)
    if BIASED:
        z += tl.load(bias + item, mask=item < I, other=0.0).to(tl.float32)[None, :]
    if ADDED:
        weights, entries, values, tiles, bank, rows, E = added
        for f in range(0, F):
            weight = of_tokens(weights + f + KF - F, first, N, 0.0, BN, KF).to(tl.float32)
            z += weight[:, None] * of_bank(bank, rows, f, first, i, N, I, F, BN, BI)
        begin, end = entries_of(tiles, first, i, N, BN, BI, GRAIN)
        for e in range(begin, end, 16):
            m = e + tl.arange(0, 16)
            at_token, at_item, n, kind, value = some_entries(entries, values, m, end, first, i, E, BN, BI)
            weight = tl.load(weights + (first + n).to(tl.int64) * KF + kind, mask=m < end, other=0.0).to(tl.float32)
            z += tl.dot(tl.trans(at_token * (weight * value)[:, None]), at_item, input_precision=P)
    return tl.where((item < I)[None, :], z, float("-inf"))


@kernel
def excess(z, i, target, total, weight, BI: tl.constexpr):
    """(p − [the item is the target]) times each token's gradient."""
    p = tl.exp(z - total[:, None])
    p -= tl.where((i + tl.arange(0, BI))[None, :] == target[:, None], 1.0, 0.0)
    return p * weight[:, None].to(tl.float32)


@kernel
def loss_forward(
    x, table, bias, weights, entries, values, tiles, bank, rows, targets, loss, normaliser, N, I, E,
    D: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr, KF: tl.constexpr, F: tl.constexpr,
    GRAIN: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, KIND: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Each token's loss and normaliser; the largest logit so far is kept apart so that nothing overflows."""
    first, added = tl.program_id(0) * BN, (weights, entries, values, tiles, bank, rows, E)
    tokens, target = load_block(x, first, N, D, D, BN, BD), of_tokens(targets, first, N, 0, BN)
    top, mass = tl.full((BN,), float("-inf"), tl.float32), tl.zeros((BN,), tl.float32)
    picked = tl.zeros((BN,), tl.float32)
    for i in range(0, I, BI):
        z = logits(
            tokens, load_block(table, i, I, D, D, BI, BD), bias, added, first, i, N, I,
            BN, BI, KF, F, GRAIN, BIASED, ADDED, KIND, P,
        )  # fmt: skip
        here = (i + tl.arange(0, BI))[None, :] == target[:, None]
        picked += tl.sum(tl.where(here, z, 0.0), 1)
        higher = tl.maximum(top, tl.max(z, 1))
        mass = mass * tl.exp(top - higher) + tl.sum(tl.exp(z - higher[:, None]), 1)
        top = higher
    n, total = first + tl.arange(0, BN), top + tl.log(mass)
    tl.store(normaliser + n, total, mask=n < N)
    tl.store(loss + n, total - picked, mask=n < N)


@kernel
def weight_gradients(
    found, p, added, first, i, N, I,
    BN: tl.constexpr, BI: tl.constexpr, BK: tl.constexpr, KF: tl.constexpr, F: tl.constexpr, GRAIN: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    """found [BN, BK] and what one tile adds to it: Σ_i p_i f(i), of each column of the weights."""
    _weights, entries, values, tiles, bank, rows, E = added
    column = tl.arange(0, BK)
    for f in range(0, F):
        share = tl.sum(p * of_bank(bank, rows, f, first, i, N, I, F, BN, BI), 1)
        found += tl.where((column == KF - F + f)[None, :], share[:, None], 0.0)
    begin, end = entries_of(tiles, first, i, N, BN, BI, GRAIN)
    for e in range(begin, end, 16):
        m = e + tl.arange(0, 16)
        at_token, at_item, _n, kind, value = some_entries(entries, values, m, end, first, i, E, BN, BI)
        own = value * tl.sum(tl.dot(at_token, p, input_precision=P) * at_item, 1)
        own = tl.where(kind[:, None] == column[None, :], own[:, None], 0.0)
        found += tl.dot(tl.trans(at_token), own, input_precision=P)
    return found


@kernel
def tokens_backward(
    x, table, bias, weights, entries, values, tiles, bank, rows, targets, normaliser, dloss, dx, dweights, N, I, E,
    D: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr, KF: tl.constexpr,
    F: tl.constexpr, GRAIN: tl.constexpr,
    BIASED: tl.constexpr, ADDED: tl.constexpr, KIND: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """dx = Σ_i (p_i − [i is the target]) w_i, times each token's gradient; the same with f(i) for the weights."""
    first, added = tl.program_id(0) * BN, (weights, entries, values, tiles, bank, rows, E)
    tokens, target = load_block(x, first, N, D, D, BN, BD), of_tokens(targets, first, N, 0, BN)
    total, weight = of_tokens(normaliser, first, N, 0.0, BN), of_tokens(dloss, first, N, 0.0, BN)
    found, of_weights = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BK), tl.float32)
    for i in range(0, I, BI):
        items = load_block(table, i, I, D, D, BI, BD)
        z = logits(
            tokens, items, bias, added, first, i, N, I,
            BN, BI, KF, F, GRAIN, BIASED, ADDED, KIND, P,
        )  # fmt: skip
        p = excess(z, i, target, total, weight, BI)
        found += tl.dot(p.to(KIND), items.to(KIND), input_precision=P, out_dtype=tl.float32)
        if ADDED:
            of_weights = weight_gradients(of_weights, p, added, first, i, N, I, BN, BI, BK, KF, F, GRAIN, P)
    store_rows(dx, found, first, N, D, D, BN, BD)
    if ADDED:
        store_rows(dweights, of_weights, first, N, KF, KF, BN, BK)


@kernel
def items_backward(
    x, table, bias, weights, entries, values, tiles, bank, rows, targets, normaliser, dloss, dtable, dbias, N, I, E,
    D: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr, KF: tl.constexpr, F: tl.constexpr,
    GRAIN: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, KIND: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The same summed over tokens, for a block of items."""
    i, added = tl.program_id(0) * BI, (weights, entries, values, tiles, bank, rows, E)
    items = load_block(table, i, I, D, D, BI, BD)
    found, sums = tl.zeros((BI, BD), tl.float32), tl.zeros((BI,), tl.float32)
    for first in range(0, N, BN):
        tokens, target = load_block(x, first, N, D, D, BN, BD), of_tokens(targets, first, N, 0, BN)
        total, weight = of_tokens(normaliser, first, N, 0.0, BN), of_tokens(dloss, first, N, 0.0, BN)
        z = logits(
            tokens, items, bias, added, first, i, N, I,
            BN, BI, KF, F, GRAIN, BIASED, ADDED, KIND, P,
        )  # fmt: skip
        p = excess(z, i, target, total, weight, BI)
        sums += tl.sum(p, 0)
        found += tl.dot(tl.trans(p).to(KIND), tokens.to(KIND), input_precision=P, out_dtype=tl.float32)
    store_rows(dtable, found, i, I, D, D, BI, BD)
    if BIASED:
        m = i + tl.arange(0, BI)
        tl.store(dbias + m, sums.to(dbias.dtype.element_ty), mask=m < I)
