"""Exact softmax loss Σ_n (log Σ_i e^{x_n·w_i + b_i} − x_n·w_{y_n} − b_{y_n}), a block of logits at a time.

The logits of all tokens never exist together: each block is turned into its share of the gradients while it is in
cache, and the backward pass only scales what the forward pass found. A small catalogue is taken whole, for a few
tokens at a time: three products. A large one is cut into tiles of tokens × items, which first give the normaliser and
then, computed again, the gradients: a fourth product costs less than logits that leave the cache.

More may be added to the logits than x_n·w_i + b_i: Σ_k c_nk f_nk(i), features f that are known, sparse in the items or
rows of a small bank, times weights c that are learned with the rest.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from prism.ops.additions import Additions, Exponentials
from prism.ops.common.backends import has_triton
from prism.ops.common.device import exact_dtype, on_gpu
from prism.ops.common.precision import autocasts, own_precision

# Logits at once: about what a core's own cache holds; elsewhere enough to fill the device.
BLOCK_LOGITS = {"cpu": 1 << 19}
BLOCK_LOGITS_ELSEWHERE = 1 << 25
# With fewer rows than this a product of all items is slower than tiles.
BLOCK_ROWS = 64
TILE_ROWS, TILE_ITEMS = 1024, 256


class Parts(NamedTuple):
    """−log p of every token, and gradients (None where none were asked for)."""

    losses: Tensor
    dx: Tensor | None = None
    dtable: Tensor | None = None
    dbias: Tensor | None = None
    dweights: Tensor | None = None


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
    added: Additions | None = None,
    weights: Float[Tensor, "N K_and_F"] | None = None,
    focus: float = 0.0,
    tile: tuple[int, int] | None = None,
) -> Float[Tensor, ""]:
    """The sum over tokens of −log p(target), differentiable in `x`, `table`, `bias` and `weights`.

    With a focus q > 0 it is the sum of (1 − p(target)^q) / q, whose limit for q → 0 is −log p: a token then counts by
    p^q, so that targets which nobody could have foreseen count less.

    Under autocast the products run in its dtype; exponentials and sums stay in the table's own.

    Args:
        x: Features, one row per token.
        table: One row per item.
        targets: The item that came, 0 ≤ target < I.
        bias: Added to each item's score.
        added: Features whose weighted sum is added to the scores; with them a tile holds all items.
        weights: Of these, for each token.
        focus: The q above, at most 1.
        tile: Tokens and items whose logits are held at once; None: what suits the cache.
    """
    if (added is None) != (weights is None):
        raise ValueError("added and weights go together: give both or neither")
    device = x.device.type
    rows, items = tile or (BLOCK_LOGITS.get(device, BLOCK_LOGITS_ELSEWHERE) // max(len(table), 1), len(table))
    if added is not None:
        rows, items = max(rows, BLOCK_ROWS), len(table)
    elif tile is None and rows < BLOCK_ROWS:
        rows, items = TILE_ROWS, TILE_ITEMS
    fast = torch.get_autocast_dtype(device) if autocasts(device) else table.dtype
    trained = torch.is_grad_enabled()
    with own_precision(x):
        strength = None if weights is None else weights.to(table.dtype)
        if tile is None and on_gpu(x) and _has_kernels(x, table):
            kernels = import_module("prism.ops.triton.softmax_loss")
            found = kernels.token_losses(x.to(table.dtype), table, bias, targets, fast, added, strength)
            return focused(found, focus).sum().to(x.dtype)
        plan = _Plan(rows, items, fast, trained, focus)
        return _SoftmaxLoss.apply(x.to(table.dtype), table, bias, strength, targets, added, plan)


def focused(losses: Float[Tensor, " N"], focus: float) -> Float[Tensor, " N"]:
    """(1 − p^q) / q of losses −log p, q = `focus`; the losses themselves where it is 0."""
    return -torch.expm1(-focus * losses) / focus if focus else losses


def _has_kernels(x: Tensor, table: Tensor) -> bool:
    """Whether the GPU's kernels take these: not in float64, nor features wider than a tile can hold."""
    return table.dtype != torch.float64 and x.shape[1] <= 256 and not torch.compiler.is_compiling() and has_triton()


class _Plan(NamedTuple):
    """How a loss is computed."""

    rows: int
    items: int
    """Of a tile of logits."""
    fast: torch.dtype
    """Of the products."""
    trained: bool
    focus: float


class _SoftmaxLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        table: Tensor,
        bias: Tensor | None,
        weights: Tensor | None,
        targets: Tensor,
        added: Additions | None,
        plan: _Plan,
    ) -> Tensor:
        catalogue = Catalogue(table, bias, table.to(plan.fast))
        if plan.items >= len(table):
            found = _whole(x, catalogue, targets, plan, Exponentials(x, len(table), added, weights))
        else:
            found = _tiled(x, catalogue, targets, plan)
        if found.dx is not None and found.dtable is not None:  # the −1 of p − 1 at the target
            counts = _counts(found.losses, plan.focus)
            found.dx.addcmul_(table[targets], counts, value=-1)
            found.dtable.index_add_(0, targets, x * counts, alpha=-1)
            if found.dbias is not None:
                found.dbias.index_add_(0, targets, counts[:, 0], alpha=-1)
        ctx.save_for_backward(*found[1:])
        return focused(found.losses, plan.focus).sum(dtype=exact_dtype(x.device)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        scaled = (None if part is None else part * grad for part in ctx.saved_tensors)
        return (*scaled, None, None, None)


def _counts(losses: Tensor, focus: float) -> Tensor:
    """[N, 1]: what −log p of each token is multiplied by in the gradient: p^q."""
    return (-focus * losses).exp_()[:, None]


def _whole(x: Tensor, catalogue: Catalogue, targets: Tensor, plan: _Plan, made: Exponentials) -> Parts:
    """All items for a few tokens at a time; gradients without the targets' −1."""
    grads = _grads(x, catalogue, plan.trained)
    losses, dweights = [x.new_empty(0)], [made.weights[:0]]
    for part in _slices(len(x), plan.rows):
        e, mass, block_losses, dweight = made.of_block(catalogue.logits(x[part]), targets, part, plan.trained)
        losses.append(block_losses)
        if grads is None:
            continue
        dx, dtable, dbias = grads
        # scaling the narrow operand by 1 / mass spares a pass over the logits
        counts, fast = _counts(block_losses, plan.focus), e.to(catalogue.fast.dtype)
        scale = counts / mass
        dx[part] = (fast @ catalogue.fast).to(x.dtype) * scale
        _add_product(dtable, fast.T, (x[part] * scale).to(fast.dtype))
        if dbias is not None:
            dbias += (e.T @ scale).squeeze(1)
        dweights.append(dweight.mul_(counts))
    if grads is None:
        return Parts(torch.cat(losses))
    return Parts(torch.cat(losses), *grads, torch.cat(dweights) if made.weights.shape[1] else None)


def _tiled(x: Tensor, catalogue: Catalogue, targets: Tensor, plan: _Plan) -> Parts:
    """Tiles of tokens × items, twice."""
    normaliser = _normaliser(x, catalogue, plan.rows, plan.items)
    losses = x.new_empty(len(x))
    for part in _slices(len(x), plan.rows):
        picked = (x[part] * catalogue.table[targets[part]]).sum(1)
        if catalogue.bias is not None:
            picked += catalogue.bias[targets[part]]
        losses[part] = normaliser[part, 0] - picked
    grads = _grads(x, catalogue, plan.trained)
    if grads is None:
        return Parts(losses)
    dx, dtable, dbias = grads
    lowered = normaliser + plan.focus * losses[:, None]  # e^{logit − this} = p · count
    for block in _slices(len(catalogue.table), plan.items):
        for part in _slices(len(x), plan.rows):
            p = catalogue.logits(x[part], block).sub_(lowered[part]).exp_()
            e = p.to(catalogue.fast.dtype)
            _add_product(dx[part], e, catalogue.fast[block])
            _add_product(dtable[block], e.T, x[part].to(e.dtype))
            if dbias is not None:
                dbias[block] += p.sum(0)
    return Parts(losses, *grads)


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


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(a, min(a + size, count)) for a in range(0, count, size))
