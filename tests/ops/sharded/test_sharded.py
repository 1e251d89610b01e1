"""A table on several processes gives the rows, the loss and the gradients of the whole one."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support.processes import run_ranks

from prism.ops.sharded.rows import SENT, Rows, lookup
from prism.ops.sharded.softmax import sharded_softmax_loss

TOTAL, D = 23, 6
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def parts(rank: int, world: int) -> None:
    torch.manual_seed(5)
    whole = torch.randn(TOTAL, D).double().requires_grad_()
    ids = [torch.randint(TOTAL, (n,)) for n in (9, 4, 0, 11)][:world]
    weights = [torch.randn(len(one), D).double() for one in ids]
    tokens = [torch.randn(n, D).double().requires_grad_() for n in (5, 3, 0, 7)][:world]
    targets = [torch.randint(TOTAL - 1, (len(x),)) for x in tokens]

    rows = Rows(TOTAL, dist.group.WORLD)
    first, end = rows.range()
    mine = whole.detach()[first:end].clone().requires_grad_()
    found = lookup(mine, ids[rank], rows)
    assert torch.equal(found, whole.detach()[ids[rank]])
    (found * weights[rank]).sum().backward()
    sum((whole[one] * w).sum() for one, w in zip(ids, weights, strict=True)).backward()
    assert mine.grad.is_sparse
    torch.testing.assert_close(mine.grad.to_dense(), whole.grad[first:end], **EXACT)

    mine.grad = whole.grad = None
    x = tokens[rank].detach().clone().requires_grad_()
    loss = sharded_softmax_loss(x, mine, targets[rank], rows, TOTAL - 1)
    factor = 1.0 if rank else 0.5  # a process may weigh its tokens otherwise
    (loss * factor).backward()
    for n, (y, t) in enumerate(zip(tokens, targets, strict=True)):
        one = F.cross_entropy(y @ whole[: TOTAL - 1].T, t, reduction="sum") if len(y) else y.sum()
        if n == rank:
            torch.testing.assert_close(loss, one, **EXACT)
        (one * (1.0 if n else 0.5)).backward()
    torch.testing.assert_close(x.grad, tokens[rank].grad, **EXACT)
    torch.testing.assert_close(mine.grad, whole.grad[first:end], **EXACT)


@pytest.mark.parametrize("world", [2, 4])
def test_rows_on_several_processes_give_what_the_whole_table_gives(world: int) -> None:
    run_ranks(world, parts, world)


def test_one_process_alone_needs_no_others() -> None:
    torch.manual_seed(0)
    rows, weight = Rows(TOTAL), torch.randn(TOTAL, D, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([3, 3, 22])
    assert torch.equal(lookup(weight, ids, rows), weight[ids])
    x, t = torch.randn(4, D).double(), torch.tensor([0, 1, 20, 21])
    wanted = F.cross_entropy(x @ weight[:22].T, t, reduction="sum")
    torch.testing.assert_close(sharded_softmax_loss(x, weight, t, rows, 22), wanted, **EXACT)


def counts(rank: int) -> None:
    rows, before = Rows(100, dist.group.WORLD), SENT.copy()
    weight = torch.zeros(rows.count, D, requires_grad=True)
    ids = torch.arange(rank, 100, 7)
    lookup(weight, ids, rows).sum().backward()
    away = int(((ids // rows.each) != rank).sum())
    asked = torch.tensor([away if r == rank else 0 for r in range(2)])
    dist.all_reduce(asked)
    sent = SENT - before
    assert sent["ids"] == 8 * away
    assert sent["gradients"] == 4 * D * away
    assert sent["rows"] == 4 * D * int(asked[1 - rank])


def test_bytes_are_counted_as_they_leave() -> None:
    run_ranks(2, counts)
