"""Exact softmax loss Σ_n (log Σ_i e^{x_n·w_i + b_i} − x_n·w_{y_n} − b_{y_n}), a block of logits at a time.

The logits of all tokens never exist together. A block of them is turned into its share of the gradients while it is
still in cache, so that the backward pass has nothing left to compute and no product is done twice.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits at once: about what a core's own cache holds, and enough rows for an efficient product.
BLOCK_LOGITS = 1 << 19
BLOCK_ROWS = 64


def softmax_loss(
    x: Float[Tensor, "N D"],
    table: Float[Tensor, "I D"],
    targets: Int[Tensor, " N"],
    *,
    bias: Float[Tensor, " I"] | None = None,
    block: int | None = None,
) -> Float[Tensor, ""]:
    """The sum over tokens of −log p(target), differentiable in `x`, `table` and `bias`.

    Under autocast the products run in its dtype; exponentials and sums stay in the inputs' own.

    Args:
        x: Features, one row a token.
        table: One row an item.
        targets: The item that came, 0 ≤ target < I.
        bias: Added to each item's score.
        block: Tokens whose logits are held at once; None: as many as suit the cache.
    """
    if block is None:
        block = max(BLOCK_ROWS, BLOCK_LOGITS // max(len(table), 1))
    device = x.device.type
    fast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else table.dtype
    trained = torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):
        return _SoftmaxLoss.apply(x.to(table.dtype), table, bias, targets, block, fast, trained)


class _SoftmaxLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        block: int,
        fast: torch.dtype,
        trained: bool,
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        dx, dtable = (torch.empty_like(x), torch.zeros_like(table)) if trained else (None, None)
        dbias = torch.zeros_like(bias) if trained and bias is not None else None
        w = table.to(fast)
        for a in range(0, len(x), block):
            rows = x[a : a + block]
            logits = (rows.to(fast) @ w.T).to(x.dtype)
            if bias is not None:
                logits += bias
            picked = logits.gather(1, targets[a : a + block, None])
            top = logits.amax(1, keepdim=True)
            weights = logits.sub_(top).exp_()  # e^{logit − top}: p is weights / mass
            mass = weights.sum(1, keepdim=True)
            total += (mass.log() + top - picked).sum()
            if dx is not None and dtable is not None:
                # dividing the narrow operand by the mass spares a pass over the logits
                e = weights.to(fast)
                dx[a : a + block] = (e @ w).to(x.dtype) / mass
                _add_product(dtable, e, (rows / mass).to(fast))
                if dbias is not None:
                    dbias += (weights.T @ (1 / mass)).squeeze(1)
        if dx is not None and dtable is not None:  # the −1 of p − 1 at the target
            dx -= table[targets]
            dtable.index_add_(0, targets, x, alpha=-1)
            if dbias is not None:
                dbias -= torch.bincount(targets, minlength=len(table))
        ctx.save_for_backward(dx, dtable, dbias)
        return total.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        dx, dtable, dbias = ctx.saved_tensors
        scaled = (None if part is None else part * grad for part in (dx, dtable, dbias))
        return (*scaled, None, None, None, None)


def _add_product(total: Tensor, e: Tensor, rows: Tensor) -> None:
    """total += eᵀ rows, in place where the dtypes allow."""
    if e.dtype == total.dtype:
        total.addmm_(e.T, rows)
    else:
        total += e.T @ rows
