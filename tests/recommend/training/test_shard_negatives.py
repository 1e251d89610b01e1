"""Negatives that each process draws among its own rows come as often as is said, and give one process's loss."""

import pytest
import torch
import torch.distributed as dist
from support.processes import run_ranks

from prism.errors import InputError
from prism.ops.sampled_loss import Drawn, sampled_log_likelihood
from prism.ops.sharded.rows import SENT, Rows, lookup
from prism.recommend.training.negatives import compact
from prism.recommend.training.shard_negatives import Shard, apportioned, draw_shards

ITEMS, DIM, NEGATIVES, UNIFORM, SHARED = 41, 6, 24, 0.5, 5
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def catalogue() -> tuple[torch.Tensor, torch.Tensor]:
    """(training events of each item, some with none; the table with the start token's row)"""
    generator = torch.Generator().manual_seed(3)
    counts = torch.randint(0, 30, (ITEMS,), generator=generator) ** 2
    return counts, torch.randn(ITEMS + 1, DIM, generator=generator).double()


def batch(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(features, targets, limits of the sequences) of one process."""
    generator = torch.Generator().manual_seed(10 + rank)
    limits = torch.tensor([0, 3, 9, 9 + rank + 1])
    count = int(limits[-1])
    x = torch.randn(count, DIM, generator=generator).double()
    return x, torch.randint(ITEMS, (count,), generator=generator), limits


def allotted(counts: torch.Tensor, world: int) -> list[tuple[int, int, int, int]]:
    """(first item, one past the last, uniform draws, draws by popularity) of each process."""
    each, flat = -(-(ITEMS + 1) // world), round(NEGATIVES * UNIFORM)
    limits = [(r * each, min((r + 1) * each, ITEMS)) for r in range(world)]
    uniform = apportioned(flat, [float(b - a) for a, b in limits], least=1)
    popular = apportioned(NEGATIVES - flat, [float(counts[a:b].sum()) for a, b in limits])
    return [(*limit, u, m) for limit, u, m in zip(limits, uniform, popular, strict=True)]


def expected(counts: torch.Tensor, world: int) -> torch.Tensor:
    """[items]: by definition, from everything that there is to know."""
    parts = [u / (b - a) + m * counts[a:b].double() / int(counts[a:b].sum()) for a, b, u, m in allotted(counts, world)]
    return torch.cat(parts)


def own_shard() -> Shard:
    rows, (counts, _) = Rows(ITEMS + 1, dist.group.WORLD), catalogue()
    first, end = rows.range()
    return Shard.of(counts[first : min(end, ITEMS)], rows, negatives=NEGATIVES, uniform=UNIFORM)


def loss_of_one_process(rank: int, world: int) -> None:
    shard, (counts, whole) = own_shard(), catalogue()
    first, end = shard.rows.range()
    torch.manual_seed(rank)
    (x, targets, limits), before = batch(rank), SENT.copy()
    drawn = draw_shards(shard, targets, limits, shared=SHARED)
    assert (SENT - before)["draws"] < 24 * 8 * (NEGATIVES + SHARED)  # codes and numbers, no rows and no counts
    small = compact(targets, targets, drawn.items, ITEMS)
    mine = whole[first:end].clone().requires_grad_()
    table = lookup(mine, small.used, shard.rows)[:-1]
    loss = -sampled_log_likelihood(x, table, small.targets, Drawn(small.drawn, drawn.log_expected, limits)).sum()
    loss.backward()
    assert mine.grad is not None
    assert mine.grad.is_sparse

    every: list[torch.Tensor] = [None] * world  # type: ignore[list-item]
    dist.all_gather_object(every, drawn.items)
    assert all(torch.equal(items[:NEGATIVES], drawn.items[:NEGATIVES]) for items in every)
    share, table = counts.double() / counts.sum(), whole.clone().requires_grad_()
    for other, items in enumerate(every):
        x, targets, limits = batch(other)
        torch.manual_seed(other)  # and takes from the generator what that process took for its draws
        a, b, flat, popular = allotted(counts, world)[other]
        torch.randint(b - a, (flat,))
        torch.rand(popular, dtype=torch.float64)
        token = torch.randperm(len(targets))[:SHARED]
        assert torch.equal(items[NEGATIVES:], targets[token])
        log_expected = torch.empty(len(limits) - 1, len(items)).double()
        for s in range(len(limits) - 1):
            inside = (token >= limits[s]) & (token < limits[s + 1])
            log_expected[s] = (expected(counts, world)[items] + int((~inside).sum()) * share[items]).log()
            log_expected[s, NEGATIVES:][inside] = torch.inf
        one = -sampled_log_likelihood(x, table[:-1], targets, Drawn(items, log_expected, limits)).sum()
        one.backward()
        if other == rank:
            torch.testing.assert_close(loss, one, **EXACT)
    torch.testing.assert_close(mine.grad.to_dense(), table.grad[first:end], **EXACT)


@pytest.mark.parametrize("world", [2, 4])
def test_processes_that_draw_their_own_rows_have_the_loss_of_one_with_the_same_draws(world: int) -> None:
    run_ranks(world, loss_of_one_process, world)


def often(rank: int) -> None:
    shard, (counts, _) = own_shard(), catalogue()
    first, end = shard.rows.range()
    torch.manual_seed(rank)
    rounds, own = 4000, min(end, ITEMS) - first
    found = torch.bincount(torch.cat([shard.drawn() for _ in range(rounds)]), minlength=own).double() / rounds
    told = shard.told(torch.arange(own))
    torch.testing.assert_close(told[:, 0], expected(counts, 2)[first:][:own], **EXACT)
    torch.testing.assert_close(told[:, 1], (counts.double() / counts.sum())[first:][:own], **EXACT)
    assert ((found - told[:, 0]).abs() < 5 * (told[:, 0] / rounds).sqrt()).all()
    assert own_sum(shard) == NEGATIVES


def own_sum(shard: Shard) -> int:
    total = torch.tensor(shard.flat + shard.popular)
    dist.all_reduce(total)
    return int(total)


def test_items_come_as_often_as_the_correction_says() -> None:
    run_ranks(2, often)


def test_draws_are_shared_out_in_whole_numbers_near_the_weights() -> None:
    assert apportioned(10, [1.0, 1.0, 1.0]) == [4, 3, 3]
    assert apportioned(5, [0.0, 1000.0, 1.0], least=1) == [0, 4, 1]
    assert apportioned(7, [3.0]) == [7]


def test_a_share_without_a_draw_is_refused() -> None:
    with pytest.raises(InputError, match="negatives is 1"):
        Shard.of(torch.ones(5, dtype=torch.int64), Rows(6), negatives=1, uniform=0.1)
