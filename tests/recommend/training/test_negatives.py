"""Drawn items stand for the catalogue without bias, and a step touches the rows that it uses and no others."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import tiny

from prism.errors import InputError
from prism.ops.sampled_loss import sampled_log_likelihood
from prism.recommend.data.splits import split
from prism.recommend.model.experts import EXPERTS
from prism.recommend.recommender import Recommender
from prism.recommend.training.negatives import Proposal, compact, draw, proposal
from prism.recommend.training.objectives import ObjectiveConfig
from prism.recommend.training.task import RecommendationTask
from prism.train.interrupt import Interrupt

ITEMS, LIMITS = 12, torch.tensor([0, 3, 4, 10, 16])
SAMPLED = ObjectiveConfig(loss="sampled", negatives=8, shared=6)
CONFIG = replace(tiny.CONFIG, objective=SAMPLED)


def popular(negatives: int = 2, uniform: float = 0.5) -> Proposal:
    """Item i comes i times: item 0 never."""
    return proposal(torch.arange(ITEMS), negatives, uniform)


def test_weighted_draws_have_the_sum_over_the_catalogue_as_their_mean() -> None:
    torch.manual_seed(0)
    source, values = popular(6, 0.34), torch.rand(ITEMS, dtype=torch.float64) * 5
    sums = []
    for _ in range(4000):
        targets = torch.multinomial(source.share, 16, replacement=True)  # as other sequences' come
        drawn = draw(source, targets, LIMITS, shared=7)
        sums.append((values[drawn.items] / drawn.log_expected.double().exp()).sum(1))  # 1 / inf: left out
    found = torch.stack(sums)
    error = (found.mean(0) - values.sum()) / (found.std(0) / len(sums) ** 0.5)
    assert error.abs().max() < 4, error


def test_items_are_drawn_once_each_by_their_chances_and_popular_ones_always() -> None:
    torch.manual_seed(0)
    source = popular(7, 0.1)
    q, always = 0.1 / ITEMS + 0.9 * source.share, source.chance == 1
    scale = (source.chance / q)[~always]
    assert 0 < always.sum() < ITEMS
    assert scale.max() - scale.min() < 1e-9
    assert (scale[0] * q[always] >= 1).all()
    assert source.chance.sum() == pytest.approx(7)
    counts = torch.zeros(ITEMS)
    for _ in range(4000):
        drawn = source.items()
        assert len(drawn) == len(drawn.unique()) == 7
        counts[drawn] += 1
    torch.testing.assert_close(counts / 4000, source.chance.float(), rtol=0, atol=0.03)


def test_a_catalogue_of_as_many_items_as_are_drawn_is_drawn_whole() -> None:
    for negatives in (ITEMS, 3 * ITEMS):
        source = popular(negatives)
        assert source.items().tolist() == list(range(ITEMS))
        assert source.chance.tolist() == [1.0] * ITEMS


def test_a_sequence_never_has_its_own_targets_among_the_shared() -> None:
    torch.manual_seed(1)
    targets = torch.arange(16) % ITEMS
    drawn = draw(popular(), targets, LIMITS, shared=16)
    sequence = torch.searchsorted(LIMITS, torch.arange(16), right=True) - 1
    left_out = drawn.log_expected[:, 2:].isinf()
    assert left_out.sum(0).tolist() == [1] * 16  # each for the one sequence that it came from
    # the shared ones are a permutation of all targets: sequence s leaves out as many as it has
    assert left_out.sum(1).tolist() == torch.bincount(sequence).tolist()
    one = draw(popular(), targets, torch.tensor([0, 16]), shared=16)
    assert one.log_expected[0, 2:].isinf().all()


@pytest.mark.parametrize(("negatives", "allowed"), [(6, 0.15), (11, 0.04), (12, 1e-6)])
def test_loss_and_gradients_approach_the_exact_ones_as_draws_grow(negatives: int, allowed: float) -> None:
    torch.manual_seed(2)
    x, table = (torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (16, ITEMS))
    source, targets = popular(negatives), torch.randint(ITEMS, (16,))
    exact = (x @ table.T).log_softmax(1)[torch.arange(16), targets].sum()
    wanted = torch.autograd.grad(exact, (x, table))
    mean, grads, repeats = 0.0, [torch.zeros_like(g) for g in wanted], 200
    for _ in range(repeats):
        drawn = draw(source, targets, LIMITS, shared=0)
        found = sampled_log_likelihood(x, table, targets, drawn).sum()
        mean += found.item() / repeats
        for total, g in zip(grads, torch.autograd.grad(found, (x, table)), strict=True):
            total += g / repeats
    assert abs(mean / exact.item() - 1) < allowed
    for g, w in zip(grads, wanted, strict=True):
        assert (g - w).norm() / w.norm() < 2 * allowed


def test_compact_codes_name_the_same_items() -> None:
    tokens, targets, drawn = torch.tensor([9, 4, 9]), torch.tensor([4, 7, 2]), torch.tensor([2, 2, 8])
    small = compact(tokens, targets, drawn, start=9)
    assert small.used.tolist() == [2, 4, 7, 8, 9]
    for codes, items in ((small.tokens, tokens), (small.targets, targets), (small.drawn, drawn)):
        assert torch.equal(small.used[codes], items)


def test_a_step_moves_the_rows_that_it_uses_and_no_others() -> None:
    divided = split(tiny.log(), "leave-one-out")
    made = Recommender._untrained(divided, CONFIG)
    task = RecommendationTask(split=divided, batching=replace(CONFIG.batching, batch=1, length=3), objective=SAMPLED)
    batch = task.batches(0)[0]
    torch.manual_seed(3)
    task.loss(made.model, batch)[0].backward()
    grad = made.model.embedding.weight.grad
    assert grad is not None
    assert grad.is_sparse
    rows = set(grad.coalesce().indices()[0].tolist())
    assert rows >= set(batch.targets.tolist()) | set(batch.events.items.tolist())
    assert len(rows) <= 3 + 3 + 8 + 3 + 1 < len(made.model.embedding.weight)


def test_the_loss_of_used_rows_is_that_of_the_whole_table() -> None:
    divided = split(tiny.log(), "leave-one-out")
    model = Recommender._untrained(divided, replace(CONFIG, item_bias=True)).model.double().eval()
    batch = RecommendationTask(split=divided, batching=CONFIG.batching, objective=SAMPLED).batches(0)[0]
    used = torch.arange(0, model.items + 1)
    whole, part = model(batch.events, batch.cu_seqlens), model(batch.events, batch.cu_seqlens, used)
    for a, b in zip(whole, part, strict=True):
        torch.testing.assert_close(a, b)


def test_a_sampled_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Recommender.fit(tiny.log(), CONFIG, out=tmp_path / "whole", progress=False)
    asked = iter([False] * 17 + [True] + [False] * 1000)
    with monkeypatch.context() as patched:
        patched.setattr(Interrupt, "asked", property(lambda self: next(asked), lambda self, value: None))
        with pytest.raises(KeyboardInterrupt):
            Recommender.fit(tiny.log(), CONFIG, out=tmp_path / "part", progress=False)
    resumed = Recommender.fit(tiny.log(), CONFIG, out=tmp_path / "part", progress=False)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_uniform_draws_cannot_be_none() -> None:
    with pytest.raises(InputError, match=r"uniform must be in \(0, 1\], got 0.0"):
        ObjectiveConfig(uniform=0.0)


def test_with_experts_and_every_item_drawn_the_sampled_loss_is_the_exact_one() -> None:
    config = replace(tiny.CONFIG, experts=EXPERTS, protocol="global-time", dropout=0.0)
    made = Recommender._untrained(split(tiny.log(), "global-time"), config)
    made.fit_experts()
    assert made.model.gates is not None
    torch.nn.init.normal_(made.model.gates.out.weight)
    exact = made.task()
    sampled = replace(exact, objective=ObjectiveConfig(loss="sampled", negatives=400, uniform=1.0, focus=0.5, shared=0))
    assert exact.objective.focus == 0.5
    losses, grads = [], []
    for task in (exact, sampled):
        torch.manual_seed(0)
        made.model.zero_grad()
        loss, _ = task.loss(made.model, task.batches(0)[1])
        loss.backward()
        losses.append(loss.item())
        weight = made.model.embedding.weight.grad
        grads.append(torch.cat([weight.to_dense().flatten(), made.model.gates.out.weight.grad.flatten()]))  # type: ignore
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert (grads[0] - grads[1]).norm() < 1e-4 * grads[0].norm()
