"""−Σ_n log p(target_n), p the softmax over a table whose rows lie on several processes.

Tokens go to every process; each sums e^s over its own rows, block by block, and what is exchanged are tokens and one
number per token: log Σ e^s = log Σ_r e^{log Σ over r's rows}. Nothing of the table's size leaves its process.
"""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from prism.ops.common.autograd import once
from prism.ops.sharded.rows import Rows

# Scores that exist at once.
BLOCK = 1 << 22


def sharded_softmax_loss(
    x: Float[Tensor, "N D"], weight: Float[Tensor, "R D"], targets: Int[Tensor, " N"], rows: Rows, items: int
) -> Float[Tensor, ""]:
    """The sum over this process's tokens; of the table the first `items` rows are candidates.

    All processes call it together, each with tokens of its own, and again in the backward pass.
    """
    with torch.autocast(x.device.type, enabled=False):
        return _Loss.apply(x.to(weight.dtype), weight, targets, rows, items)  # type: ignore[no-any-return, no-untyped-call]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, rows: Rows, items: int) -> Tensor:
        first, end = rows.range()
        mine = weight.detach()[: max(0, min(end, items) - first)]
        parts = rows.gather(x.detach(), "tokens")
        every, wanted = torch.cat(parts), torch.cat(rows.gather(targets, "targets"))
        total = every.new_full((len(every),), -torch.inf)
        for a, b in _blocks(len(every), len(mine)):
            total = torch.logaddexp(total, (every @ mine[a:b].T).logsumexp(1))
        top = rows.sum(total.clone(), "sums", dist.ReduceOp.MAX)
        total = top + rows.sum((total - top).exp(), "sums").log()
        here = (wanted >= first) & (wanted < first + len(mine))
        score = every.new_zeros(len(every))
        score[here] = (every[here] * mine[wanted[here] - first]).sum(1)
        score = rows.sum(score, "sums")
        a = sum(map(len, parts[: rows.rank]))
        ctx.save_for_backward(every, weight, total, wanted)
        ctx.rows, ctx.kept, ctx.sizes = rows, len(mine), [len(part) for part in parts]
        own = slice(a, a + len(x))
        return (total[own] - score[own]).sum()

    @staticmethod
    @once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        every, weight, total, wanted = ctx.saved_tensors
        rows: Rows = ctx.rows
        first, mine = rows.range()[0], weight[: ctx.kept]
        factors = torch.cat(rows.gather(grad.reshape(1), "sums"))
        g = factors.repeat_interleave(torch.tensor(ctx.sizes, device=grad.device))
        dx, dweight = torch.zeros_like(every), torch.zeros_like(weight)
        for a, b in _blocks(len(every), len(mine)):
            p = (every @ mine[a:b].T - total[:, None]).exp_().mul_(g[:, None])
            dx += p @ mine[a:b]
            dweight[a:b] = p.T @ every
        here = ((wanted >= first) & (wanted < first + len(mine))).nonzero()[:, 0]
        local = wanted[here] - first
        dx.index_add_(0, here, mine[local] * -g[here, None])
        dweight.index_add_(0, local, every[here] * -g[here, None])
        dx = rows.sum(dx, "tokens")
        a = sum(ctx.sizes[: rows.rank])
        return dx[a : a + ctx.sizes[rows.rank]], dweight, None, None, None


def _blocks(tokens: int, items: int) -> list[tuple[int, int]]:
    size = max(1, BLOCK // max(tokens, 1))
    return [(a, min(a + size, items)) for a in range(0, items, size)]
