"""The exact softmax loss of each token on a GPU, its logits never in memory."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from prism.ops.additions import Additions
from prism.ops.common.autograd import once
from prism.ops.triton.around import softmax
from prism.ops.triton.device import check_device, is_amd, product_precision

# Tokens and items of a tile.
TOKENS, ITEMS = 64, 64
ITEM_TOKENS = 32  # for the gradient of the items, which is held beside them, and where features are added
_KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def token_losses(
    x: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    fast: torch.dtype,
    added: Additions | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """−log p(target) of each token [N], in float32; products run in the dtype `fast`.

    With `added`, its features times `weights` [N, K + F] are added to the logits.
    """
    check_device(x)
    tiled = None if added is None else by_tiles(added, len(x), len(table))
    return _TokenLosses.apply(x, table, bias, weights, targets, fast, tiled)  # type: ignore[no-any-return, no-untyped-call]


class Tiled(NamedTuple):
    """Additions with their entries in the order of the tiles."""

    entries: Tensor  # [3, E]: token, item and kind of each
    values: Tensor  # [E]
    tiles: Tensor  # [items / ITEMS, tokens / ITEM_TOKENS + 1]: the first entry of each tile
    bank: Tensor
    rows: Tensor


def by_tiles(added: Additions, N: int, items: int) -> Tiled:
    """Sorted on the device: the host need not wait for how many entries a tile has."""
    device, count = added.items.device, added.items.numel()
    token = torch.searchsorted(added.starts, torch.arange(count, device=device), right=True) - 1
    # tokens come in order, and stay so among the entries of a block of items
    block, order = torch.sort(torch.div(added.items, ITEMS, rounding_mode="floor"), stable=True)
    entries = torch.stack([part.to(torch.int32)[order] for part in (token, added.items, added.kinds)])
    first = (torch.arange(triton.cdiv(N, ITEM_TOKENS) + 1, device=device) * ITEM_TOKENS).clamp_max(N)
    wanted = torch.arange(triton.cdiv(items, ITEMS), device=device)[:, None] * N + first
    tiles = torch.searchsorted(block.long() * N + entries[0], wanted.contiguous(), out_int32=True)
    return Tiled(entries, added.values.float()[order], tiles, added.bank.contiguous(), added.rows.contiguous())


def sizes_of(x: Tensor, bias: Tensor | None, weights: Tensor | None, tiled: Tiled | None, fast: torch.dtype) -> Any:
    """What the kernels are compiled for."""
    D, added = x.shape[1], tiled is not None
    BN = TOKENS // 2 if D > 128 or added else TOKENS
    sizes = {"D": D, "BN": BN, "BI": ITEMS, "BD": max(16, triton.next_power_of_2(D)), "GRAIN": ITEM_TOKENS}
    sizes |= {"KF": 0 if weights is None else weights.shape[1], "F": 0 if tiled is None else tiled.rows.shape[1]}
    sizes |= {"BIASED": bias is not None, "ADDED": added, "KIND": _KINDS[fast], "P": product_precision()}
    return sizes | launch_options(added)


def launch_options(added: bool) -> dict[str, int]:
    """With features four warps have too few registers (AMD's have twice as many), and none to load ahead of time.

    Without them NVIDIA's compiler is told that it may take all there are: for sm_100 it stops at 128, and spills.
    """
    if not added:
        return {"num_warps": 4} if is_amd() else {"num_warps": 4, "maxnreg": 255}
    return {"num_warps": 4 if is_amd() else 8, "num_stages": 1}


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        x, table, bias, weights, targets, fast, tiled = given
        x, table, targets = x.contiguous(), table.contiguous(), targets.contiguous()
        weights = None if weights is None else weights.contiguous()
        N = len(x)
        loss, normaliser = (torch.empty(N, dtype=torch.float32, device=x.device) for _ in range(2))
        ctx.sizes, ctx.tiled = sizes_of(x, bias, weights, tiled, fast), tiled
        added, count = _operands(tiled)
        if N:
            softmax.loss_forward[(triton.cdiv(N, ctx.sizes["BN"]),)](
                x, table, bias, weights, *added, targets, loss, normaliser, N, len(table), count, **ctx.sizes
            )  # fmt: skip
        ctx.save_for_backward(x, table, bias, weights, targets, normaliser)
        return loss

    @staticmethod
    @once
    def backward(ctx: Any, dloss: Tensor) -> tuple[Any, ...]:
        x, table, bias, weights, targets, normaliser = ctx.saved_tensors
        N, items, sizes = len(x), len(table), ctx.sizes
        dx, dtable = torch.empty_like(x), torch.empty_like(table)
        dbias, dweights = (None if y is None else torch.empty_like(y) for y in (bias, weights))
        added, count = _operands(ctx.tiled)
        given = (x, table, bias, weights, *added, targets, normaliser, dloss.contiguous())
        if N:
            BK = max(16, triton.next_power_of_2(sizes["KF"]))
            softmax.tokens_backward[(triton.cdiv(N, sizes["BN"]),)](
                *given, dx, dweights, N, items, count, BK=BK, **sizes
            )  # fmt: skip
        fewer = sizes | {"BN": ITEM_TOKENS}
        softmax.items_backward[(triton.cdiv(items, sizes["BI"]),)](*given, dtable, dbias, N, items, count, **fewer)
        return dx, dtable, dbias, dweights, None, None, None


def _operands(tiled: Tiled | None) -> tuple[tuple[Tensor | None, ...], int]:
    """What the kernels take of the additions, and the count of entries."""
    return ((None,) * 5, 0) if tiled is None else (tuple(tiled), tiled.values.numel())
