"""Exact softmax loss Σ_n (log Σ_i e^{x_n·w_i + b_i} − x_n·w_{y_n} − b_{y_n}), a block of logits at a time.

The logits of all tokens never exist together: each block is turned into its share of the gradients while it is in
cache, and the backward pass only scales what the forward pass found. A small catalogue is taken whole, for a few
tokens at a time: three products. A large one is cut into tiles of tokens × items, which first give the normaliser and
then, computed again, the gradients: a fourth product costs less than logits that leave the cache.

The softmax may be one part of a mixture: with e^{b_n} for what the others say of the target, over the softmax's own
weight, the loss is −log(p_n + e^{b_n}), and token n counts as much as the softmax is responsible for it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits at once: about what a core's own cache holds.
BLOCK_LOGITS = 1 << 19
# With fewer rows than this a product of all items is slower than tiles.
BLOCK_ROWS = 64
TILE_ROWS, TILE_ITEMS = 1024, 256


class Parts(NamedTuple):
    """A loss and its gradients (None where none were asked for)."""

    total: Tensor
    dx: Tensor | None = None
    dtable: Tensor | None = None
    dbias: Tensor | None = None


class Catalogue(NamedTuple):
    """The table, in the dtype of the products, and the bias."""

    table: Tensor
    bias: Tensor | None
    fast: Tensor

    def logits(self, rows: Tensor, items: slice = slice(None)) -> Tensor:
        """[rows, items] in the table's own dtype."""
        found = (rows.to(self.fast.dtype) @ self.fast[items].T).to(self.table.dtype)
        return found if self.bias is None else found.add_(self.bias[items])


def softmax_loss(
    x: Float[Tensor, "N D"],
    table: Float[Tensor, "I D"],
    targets: Int[Tensor, " N"],
    *,
    bias: Float[Tensor, " I"] | None = None,
    beside: Float[Tensor, " N"] | None = None,
    tile: tuple[int, int] | None = None,
) -> Float[Tensor, ""]:
    """The sum over tokens of −log p(target), differentiable in `x`, `table`, `bias` and `beside`.

    Under autocast the products run in its dtype; exponentials and sums stay in the table's own.

    Args:
        x: Features, one row a token.
        table: One row an item.
        targets: The item that came, 0 ≤ target < I.
        bias: Added to each item's score.
        beside: Logarithm of what is added to each token's p(target) before the logarithm is taken; −∞: nothing.
        tile: Tokens and items whose logits are held at once; None: what suits the cache.
    """
    rows, items = tile or (BLOCK_LOGITS // max(len(table), 1), len(table))
    if tile is None and rows < BLOCK_ROWS:
        rows, items = TILE_ROWS, TILE_ITEMS
    device = x.device.type
    fast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else table.dtype
    trained = torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):
        others = None if beside is None else beside.to(table.dtype)
        return _SoftmaxLoss.apply(x.to(table.dtype), table, bias, others, targets, rows, items, fast, trained)


class _SoftmaxLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        table: Tensor,
        bias: Tensor | None,
        beside: Tensor | None,
        targets: Tensor,
        rows: int,
        items: int,
        fast: torch.dtype,
        trained: bool,
    ) -> Tensor:
        catalogue = Catalogue(table, bias, table.to(fast))
        if items >= len(table):
            found, part = _whole(x, catalogue, targets, beside, rows, trained)
        else:
            found, part = _tiled(x, catalogue, targets, beside, rows, items, trained)
        if found.dx is not None and found.dtable is not None:  # the −1 of p − 1 at the target
            found.dx.sub_(table[targets] if part is None else table[targets] * part)
            found.dtable.index_add_(0, targets, x if part is None else x * part, alpha=-1)
            if found.dbias is not None:
                counts = None if part is None else part[:, 0]
                found.dbias.sub_(torch.bincount(targets, weights=counts, minlength=len(table)))
        ctx.save_for_backward(found.dx, found.dtable, found.dbias, None if part is None else part[:, 0] - 1)
        return found.total.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        scaled = (None if part is None else part * grad for part in ctx.saved_tensors)
        return (*scaled, None, None, None, None, None)


def _whole(
    x: Tensor, catalogue: Catalogue, targets: Tensor, beside: Tensor | None, rows: int, trained: bool
) -> tuple[Parts, Tensor | None]:
    """All items for a few tokens at a time; gradients without the targets' −1, and the tokens' responsibilities."""
    total, grads = _zero(x), _grads(x, catalogue, trained)
    parts = []
    for part in _slices(len(x), rows):
        logits = catalogue.logits(x[part])
        picked = logits.gather(1, targets[part, None])
        top = logits.amax(1, keepdim=True)
        weights = logits.sub_(top).exp_()  # e^{logit − top}: p is weights / mass
        mass = weights.sum(1, keepdim=True)
        loss, responsible = _mixed(mass.log() + top - picked, beside, part)
        total += loss.sum()
        if grads is not None:
            dx, dtable, dbias = grads
            # dividing the narrow operand by the mass spares a pass over the logits
            e = weights.to(catalogue.fast.dtype)
            if responsible is not None:
                mass = mass / responsible  # not responsible at all: ∞, and no gradient
                parts.append(responsible)
            dx[part] = (e @ catalogue.fast).to(x.dtype) / mass
            _add_product(dtable, e.T, (x[part] / mass).to(e.dtype))
            if dbias is not None:
                dbias += (weights.T @ (1 / mass)).squeeze(1)
    return Parts(total, *(grads or ())), torch.cat(parts) if parts else None


def _tiled(
    x: Tensor, catalogue: Catalogue, targets: Tensor, beside: Tensor | None, rows: int, items: int, trained: bool
) -> tuple[Parts, Tensor | None]:
    """Tiles of tokens × items, twice."""
    normaliser = _normaliser(x, catalogue, rows, items)
    total, parts = _zero(x), []
    for part in _slices(len(x), rows):
        picked = (x[part] * catalogue.table[targets[part]]).sum(1, keepdim=True)
        if catalogue.bias is not None:
            picked += catalogue.bias[targets[part], None]
        loss, responsible = _mixed(normaliser[part] - picked, beside, part)
        total += loss.sum()
        if responsible is not None:
            parts.append(responsible)
    responsibility = torch.cat(parts) if parts else None
    grads = _grads(x, catalogue, trained)
    if grads is None:
        return Parts(total), responsibility
    dx, dtable, dbias = grads
    for block in _slices(len(catalogue.table), items):
        for part in _slices(len(x), rows):
            p = catalogue.logits(x[part], block).sub_(normaliser[part]).exp_()
            if responsibility is not None:
                p *= responsibility[part]
            e = p.to(catalogue.fast.dtype)
            _add_product(dx[part], e, catalogue.fast[block])
            _add_product(dtable[block], e.T, x[part].to(e.dtype))
            if dbias is not None:
                dbias[block] += p.sum(0)
    return Parts(total, *grads), responsibility


def _mixed(loss: Tensor, beside: Tensor | None, part: slice) -> tuple[Tensor, Tensor | None]:
    """−log(p + e^b) from −log p, and the softmax's share of it."""
    if beside is None:
        return loss, None
    other = beside[part, None]
    return -torch.logaddexp(-loss, other), torch.sigmoid(-loss - other)


def _normaliser(x: Tensor, catalogue: Catalogue, rows: int, items: int) -> Tensor:
    """[N, 1]: log Σ_i e^{logit_i}, the largest logit so far kept apart so that nothing overflows."""
    top, mass = x.new_full((len(x), 1), -torch.inf), x.new_zeros(len(x), 1)
    for block in _slices(len(catalogue.table), items):
        for part in _slices(len(x), rows):
            logits = catalogue.logits(x[part], block)
            higher = torch.maximum(logits.amax(1, keepdim=True), top[part])
            kept = mass[part] * (top[part] - higher).exp_()
            mass[part] = kept + logits.sub_(higher).exp_().sum(1, keepdim=True)
            top[part] = higher
    return top + mass.log()


def _grads(x: Tensor, catalogue: Catalogue, trained: bool) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Zeros to add to: of x, the table and the bias."""
    if not trained:
        return None
    bias = catalogue.bias
    return torch.zeros_like(x), torch.zeros_like(catalogue.table), None if bias is None else torch.zeros_like(bias)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, in one go where the dtypes allow."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _zero(x: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=x.device)


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(a, min(a + size, count)) for a in range(0, count, size))
