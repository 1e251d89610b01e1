"""The exact softmax loss of each token on a GPU, its logits never in memory."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from prism.ops.common.autograd import once
from prism.ops.triton.around import softmax
from prism.ops.triton.device import check_device, product_precision

# Tokens and items of a tile.
TOKENS, ITEMS = 64, 64
ITEM_TOKENS = 32  # for the gradient of the items, which is held beside them
_KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def token_losses(x: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, fast: torch.dtype) -> Tensor:
    """−log p(target) of each token [N], in float32; products run in the dtype `fast`."""
    check_device(x)
    return _TokenLosses.apply(x, table, bias, targets, fast)  # type: ignore[no-any-return, no-untyped-call]


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, fast: torch.dtype) -> Tensor:
        x, table, targets = x.contiguous(), table.contiguous(), targets.contiguous()
        N, D = x.shape
        loss, normaliser = (torch.empty(N, dtype=torch.float32, device=x.device) for _ in range(2))
        BN = TOKENS // 2 if D > 128 else TOKENS
        sizes = {"D": D, "BN": BN, "BI": ITEMS, "BD": max(16, triton.next_power_of_2(D))}
        sizes |= {"BIASED": bias is not None, "KIND": _KINDS[fast], "P": product_precision()}
        if N:
            softmax.loss_forward[(triton.cdiv(N, BN),)](
                x, table, bias, targets, loss, normaliser, N, len(table), **sizes
            )  # fmt: skip
        ctx.save_for_backward(x, table, bias, targets, normaliser)
        ctx.sizes = sizes
        return loss

    @staticmethod
    @once
    def backward(ctx: Any, dloss: Tensor) -> tuple[Any, ...]:
        x, table, bias, targets, normaliser = ctx.saved_tensors
        N, items, sizes = len(x), len(table), ctx.sizes
        dx, dtable, dbias = (
            torch.empty_like(x),
            torch.empty_like(table),
            None if bias is None else torch.empty_like(bias),
        )
        given = (x, table, bias, targets, normaliser, dloss.contiguous())
        if N:
            softmax.tokens_backward[(triton.cdiv(N, sizes["BN"]),)](*given, dx, N, items, **sizes)
        fewer = sizes | {"BN": ITEM_TOKENS}
        softmax.items_backward[(triton.cdiv(items, sizes["BI"]),)](*given, dtable, dbias, N, items, **fewer)
        return dx, dtable, dbias, None, None
