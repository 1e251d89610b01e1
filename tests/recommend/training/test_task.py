"""Training batches and scoring: pure functions of (seed, epoch), nothing of the future, each user encoded once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from prism.layers import mixer_config
from prism.models.backbone import BackboneConfig
from prism.recommend.data.log import Log
from prism.recommend.data.splits import split
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.evaluation.ranking import evaluate
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.model.recommender import RecommenderConfig, RecommenderModel
from prism.recommend.training.histories import pack
from prism.recommend.training.objectives import ObjectiveConfig, objective
from prism.recommend.training.task import BatchConfig, RecommendationTask


@pytest.fixture(scope="module")
def log() -> Log:
    return synthetic_log(40, 30, 900)


def task(log: Log, protocol: str = "leave-one-out", **fields: object) -> RecommendationTask:
    batching = BatchConfig(**{"batch": 8, "length": 10, "windows": "last", **fields})
    return RecommendationTask(split=split(log, protocol), batching=batching, objective=ObjectiveConfig())


def model(items: int, mixer: str = "prism", query_time: bool = False) -> RecommenderModel:
    torch.manual_seed(0)
    backbone = BackboneConfig(dim=16, layers=1, mixer=mixer_config(mixer, heads=2))
    return RecommenderConfig(backbone=backbone, query_time=query_time, time_gaps=query_time).build(items).double()


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return all(map(same, a, b)) if isinstance(a, tuple) else a == b


def test_every_token_is_followed_by_its_target(log: Log) -> None:
    train = task(log).split.train
    for batch in task(log).batches(0):
        for n, (user, first) in enumerate(batch.windows.tolist()):
            part = slice(*batch.cu_seqlens[n : n + 2].tolist())
            wanted = train.items[first : train.offsets[user + 1]]
            assert batch.events.items[part].tolist() == [train.n_items, *wanted[:-1]]
            assert batch.targets[part].tolist() == wanted.tolist()


@pytest.mark.parametrize("windows", ["last", "all"])
def test_an_epoch_is_a_function_of_seed_and_epoch(log: Log, windows: str) -> None:
    one = task(log, windows=windows)
    assert all(map(same, one.batches(3), task(log, windows=windows).batches(3)))
    assert not same(one.batches(3)[0], one.batches(4)[0])
    assert not same(one.batches(3)[0], replace(one, seed=1).batches(3)[0])


def test_all_windows_cover_every_event_once(log: Log) -> None:
    one = task(log, windows="all")
    found = np.concatenate([batch.targets.numpy() for batch in one.batches(0)])
    assert np.array_equal(np.bincount(found, minlength=30), one.split.train.item_counts())


@pytest.mark.parametrize("protocol", ["leave-one-out", "global-time"])
def test_shuffling_the_future_changes_no_training_batch(log: Log, protocol: str) -> None:
    before = split(log, protocol)
    whole, changed = before.log, before.log.items.copy()
    held = np.concatenate([before.valid.positions, before.test.positions])
    changed[held] = np.random.default_rng(0).permutation(changed[held])
    after = replace(task(log, protocol), split=split(replace(whole, items=changed), protocol))
    for a, b in zip(task(log, protocol).batches(0), after.batches(0), strict=True):
        assert same(a, b)


def test_items_that_training_never_saw_are_skipped(log: Log) -> None:
    start, end = log.offsets[:1], log.offsets[1:2]
    packed, at = pack(log, start, end, items=15)
    known = [item for item in log.history(0).tolist() if item < 15]
    assert packed.events.items.tolist() == [15, *known]
    assert log.items[at[1:]].tolist() == known


def test_without_query_time_no_token_knows_when_the_next_comes(log: Log) -> None:
    packed, _ = pack(log, log.offsets[:-1], log.offsets[1:], items=30, asked=np.full(40, 10**10))
    times = packed.events.times
    assert torch.equal(times[:, 0], times[:, 1])
    packed, _ = pack(log, log.offsets[:-1], log.offsets[1:], items=30, asked=np.full(40, 10**10), query_time=True)
    assert torch.equal(
        packed.events.times[:-1, 1][packed.events.items[1:] != 30], times[1:, 0][packed.events.items[1:] != 30]
    )
    assert (packed.events.times[packed.cu_seqlens[1:] - 1, 1] == 10**10).all()


@pytest.mark.parametrize("query_time", [False, True])
def test_scores_of_many_queries_of_a_user_equal_those_of_each_alone(log: Log, query_time: bool) -> None:
    divided = split(log, "global-time")
    scorer = ModelScorer(model(divided.train.n_items, query_time=query_time))
    together = scorer(divided.log, divided.test)
    assert len(np.unique(divided.test.users)) < len(divided.test)
    for n in range(0, len(divided.test), 7):
        torch.testing.assert_close(scorer(divided.log, divided.test[n : n + 1])[0], together[n])


def test_a_context_as_long_as_the_history_changes_nothing_and_a_shorter_one_does(log: Log) -> None:
    divided = split(log, "global-time")
    net = model(divided.train.n_items)
    whole, wide, narrow = (ModelScorer(net, context)(divided.log, divided.test) for context in (None, 1000, 2))
    torch.testing.assert_close(whole, wide)
    assert not torch.allclose(whole, narrow)


def test_evaluation_leaves_training_mode_and_the_generator_alone(log: Log) -> None:
    one, net = task(log), model(30).train()
    before = torch.get_rng_state()
    metrics = one.evaluate(net)
    assert net.training
    assert torch.equal(before, torch.get_rng_state())
    wanted = evaluate(ModelScorer(net), one.split.log, one.split.valid)
    assert metrics["ndcg@10"] == wanted["ndcg@10"]


@pytest.mark.parametrize("loss", ["softmax", "bce"])
def test_every_loss_falls_when_the_target_scores_higher(loss: str) -> None:
    table, targets = torch.eye(6), torch.arange(6)
    config = ObjectiveConfig(loss=loss, negatives=4)
    values = [objective(config, size * table, table, None, targets) for size in (0.0, 3.0)]
    assert values[1] < values[0]
