"""−log softmax of a catalogue at each token's target, a block of logits at a time; they never reach memory.

The forward leaves each token's normaliser; the backward computes the logits twice more, for the gradient of the tokens
and for that of the items, and no sum crosses programs.
"""

# mypy: ignore-errors
import triton.language as tl

from prism.ops.triton.compiling import kernel


@kernel
def block(pointer, first, count, D: tl.constexpr, B: tl.constexpr, BD: tl.constexpr):
    """Rows first, …, first + B − 1 of a matrix [count, D]."""
    n, i = first + tl.arange(0, B), tl.arange(0, BD)
    mask = (n < count)[:, None] & (i < D)[None, :]
    return tl.load(pointer + n.to(tl.int64)[:, None] * D + i[None, :], mask=mask, other=0.0)


@kernel
def logits(rows, items, bias, first, I, BI: tl.constexpr, BIASED: tl.constexpr, kind: tl.constexpr, P: tl.constexpr):
    """[rows, items] in float32; −∞ beyond the last item."""
    found = tl.dot(rows.to(kind), tl.trans(items.to(kind)), input_precision=P, out_dtype=tl.float32)
    i = first + tl.arange(0, BI)
    if BIASED:
        found += tl.load(bias + i, mask=i < I, other=0.0).to(tl.float32)[None, :]
    return tl.where((i < I)[None, :], found, float("-inf"))


@kernel
def loss_forward(
    x, table, bias, targets, loss, normaliser, N, I,
    D: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr,
    BIASED: tl.constexpr, KIND: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Each token's loss and normaliser; the largest logit so far is kept apart so that nothing overflows."""
    first = tl.program_id(0) * BN
    n = first + tl.arange(0, BN)
    rows = block(x, first, N, D, BN, BD)
    target = tl.load(targets + n, mask=n < N, other=0)
    top, mass = tl.full((BN,), float("-inf"), tl.float32), tl.zeros((BN,), tl.float32)
    picked = tl.zeros((BN,), tl.float32)
    for i in range(0, I, BI):
        z = logits(rows, block(table, i, I, D, BI, BD), bias, i, I, BI, BIASED, KIND, P)
        here = (i + tl.arange(0, BI))[None, :] == target[:, None]
        picked += tl.sum(tl.where(here, z, 0.0), 1)
        higher = tl.maximum(top, tl.max(z, 1))
        mass = mass * tl.exp(top - higher) + tl.sum(tl.exp(z - higher[:, None]), 1)
        top = higher
    total = top + tl.log(mass)
    tl.store(normaliser + n, total, mask=n < N)
    tl.store(loss + n, total - picked, mask=n < N)


@kernel
def tokens_backward(
    x, table, bias, targets, normaliser, dloss, dx, N, I,
    D: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr,
    BIASED: tl.constexpr, KIND: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """dx = Σ_i (p_i − [i is the target]) w_i, times each token's gradient."""
    first = tl.program_id(0) * BN
    n = first + tl.arange(0, BN)
    rows = block(x, first, N, D, BN, BD)
    target, total = tl.load(targets + n, mask=n < N, other=0), tl.load(normaliser + n, mask=n < N, other=0.0)
    weight = tl.load(dloss + n, mask=n < N, other=0.0).to(tl.float32)
    found = tl.zeros((BN, BD), tl.float32)
    for i in range(0, I, BI):
        items = block(table, i, I, D, BI, BD)
        p = tl.exp(logits(rows, items, bias, i, I, BI, BIASED, KIND, P) - total[:, None])
        p -= tl.where((i + tl.arange(0, BI))[None, :] == target[:, None], 1.0, 0.0)
        p *= weight[:, None]
        found += tl.dot(p.to(KIND), items.to(KIND), input_precision=P, out_dtype=tl.float32)
    j = tl.arange(0, BD)
    mask = (n < N)[:, None] & (j < D)[None, :]
    tl.store(dx + n.to(tl.int64)[:, None] * D + j[None, :], found.to(dx.dtype.element_ty), mask=mask)


@kernel
def items_backward(
    x, table, bias, targets, normaliser, dloss, dtable, dbias, N, I,
    D: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr,
    BIASED: tl.constexpr, KIND: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The same summed over tokens, for a block of items."""
    i = tl.program_id(0) * BI
    items = block(table, i, I, D, BI, BD)
    found, sums = tl.zeros((BI, BD), tl.float32), tl.zeros((BI,), tl.float32)
    for first in range(0, N, BN):
        n = first + tl.arange(0, BN)
        rows = block(x, first, N, D, BN, BD)
        target, total = tl.load(targets + n, mask=n < N, other=0), tl.load(normaliser + n, mask=n < N, other=0.0)
        p = tl.exp(logits(rows, items, bias, i, I, BI, BIASED, KIND, P) - total[:, None])
        p -= tl.where((i + tl.arange(0, BI))[None, :] == target[:, None], 1.0, 0.0)
        p *= tl.load(dloss + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
        sums += tl.sum(p, 0)
        found += tl.dot(tl.trans(p).to(KIND), rows.to(KIND), input_precision=P, out_dtype=tl.float32)
    m, j = i + tl.arange(0, BI), tl.arange(0, BD)
    mask = (m < I)[:, None] & (j < D)[None, :]
    tl.store(dtable + m.to(tl.int64)[:, None] * D + j[None, :], found.to(dtable.dtype.element_ty), mask=mask)
    if BIASED:
        tl.store(dbias + m, sums.to(dbias.dtype.element_ty), mask=m < I)
