"""Training on a prepared log sees every window once in an epoch, whoever makes the batches and wherever it stops."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from support.processes import run_ranks
from support.sharded import fit_whole
from torch import Tensor

from prism.errors import InputError
from prism.recommend.answer.batch import BatchJob, write_partition
from prism.recommend.config import PLAIN
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.data.prepared.prepare import prepare_log
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.model.experts import EXPERTS, fit_experts
from prism.recommend.recommender import Recommender
from prism.recommend.runs.streaming import fit_streamed
from prism.recommend.training.stream import StreamConfig, StreamTask, sample
from prism.recommend.training.task import Batch, BatchConfig
from prism.train import checkpoints
from prism.train.config import TrainConfig
from prism.train.prefetch import Prefetched

CONFIG = replace(
    PLAIN,
    mixer="gated-deltanet",
    dim=8,
    layers=1,
    ffn=0,
    dropout=0.1,
    batching=BatchConfig(batch=5, length=12, windows="all"),
    train=TrainConfig(epochs=2, lr=0.01),
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("log")
    synthetic_log(90, 40, 3000, seed=5).frame().write_parquet(folder / "log.parquet")
    return prepare_log([str(folder / "log.parquet")], folder / "out", partitions=16)


def task(prepared: Prepared, windows: str = "all", **stream: int) -> StreamTask:
    config = replace(CONFIG, experts=(), batching=replace(CONFIG.batching, windows=windows))
    made = Recommender._untrained(sample(prepared, 100), config)
    return made.task(StreamTask, prepared=prepared, stream=StreamConfig(**{"group": 3, "lanes": 2} | stream))


def same(a: Batch, b: Batch) -> bool:
    return all(torch.equal(x, y) for x, y in zip(_flat(a), _flat(b), strict=True))


def _flat(batch: Batch) -> list[Tensor]:
    return [*batch.events, batch.cu_seqlens, batch.targets, batch.windows]  # without the experts


@pytest.mark.parametrize("windows", ["all", "last"])
def test_an_epoch_has_every_training_event_of_its_windows_as_a_target_once(prepared: Prepared, windows: str) -> None:
    stream = task(prepared, windows)
    batches = stream.batches(1)
    found = torch.cat([batches[n].targets for n in range(len(batches))])
    train = prepared.split(list(range(16))).train
    if windows == "last":
        ends = train.offsets[1:][train.lengths > 0]
        starts = np.maximum(train.offsets[:-1][train.lengths > 0], ends - 12)
        wanted = np.concatenate([train.items[a:b] for a, b in zip(starts, ends, strict=True)])
    else:
        wanted = train.items
    assert np.array_equal(np.bincount(found.numpy(), minlength=40), np.bincount(wanted, minlength=40))


def test_epochs_differ_and_an_epoch_is_always_the_same(prepared: Prepared) -> None:
    stream = task(prepared)
    one, again, other = stream.batches(0), task(prepared).batches(0), stream.batches(1)
    assert all(same(one[n], again[n]) for n in reversed(range(len(one))))
    assert not all(same(one[n], other[n]) for n in range(min(len(one), len(other))))


@pytest.mark.parametrize("workers", [0, 3])
def test_batches_do_not_depend_on_the_loader_threads(prepared: Prepared, workers: int) -> None:
    plain, threaded = task(prepared).batches(0), task(prepared, workers=workers).batches(0)
    assert isinstance(threaded, Prefetched) == (workers > 0)
    assert len(plain) == len(threaded)
    for n in range(1, len(plain), 2):  # as the second of two processes asks for them
        assert same(plain[n], threaded[n])


def test_processes_that_divide_the_lanes_read_partitions_of_their_own(prepared: Prepared) -> None:
    batches = task(prepared, workers=0).batches(0)
    both = 2 * (len(batches) // 2)
    seen = [{p for n in range(rank, both, 2) for p in batches[n].windows[:, 0].tolist()} for rank in (0, 1)]
    whole = min(len(g) for g in seen) > 0
    assert whole
    # at the end of the epoch, where one lane has nothing left, the other's is shared
    assert len(seen[0] & seen[1]) <= 3


def test_a_streamed_run_stops_and_goes_on_loads_and_evaluates(prepared: Prepared, tmp_path: Path) -> None:
    whole = fit_streamed(prepared, CONFIG, tmp_path / "whole", progress=False, workers=2)
    one = replace(CONFIG, train=replace(CONFIG.train, save_seconds=0))
    with pytest.MonkeyPatch.context() as patch:
        steps = [9]

        def stop(self: object, *args: object) -> list[bool]:
            steps[0] -= 1
            return [steps[0] == 0, False]

        patch.setattr("prism.train.loop.Loop._any", stop)
        with pytest.raises(KeyboardInterrupt):
            fit_streamed(prepared, one, tmp_path / "run", progress=False, workers=1)
    found = fit_streamed(prepared, one, tmp_path / "run", progress=False, workers=0)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, found.model.state_dict()[name]), name
    loaded = Recommender.load(tmp_path / "run", device="cpu")
    assert loaded.evaluate(valid=True)["ndcg@10"] == found.evaluate(valid=True)["ndcg@10"]
    assert checkpoints.newest(tmp_path / "run", "best") is not None
    assert not (tmp_path / "run" / "events.parquet").exists()


def test_two_processes_rank_half_of_the_queries_each_and_find_what_one_finds(
    prepared: Prepared, tmp_path: Path
) -> None:
    config = replace(CONFIG, dropout=0.0)
    run_ranks(2, fit_whole, prepared.folder, tmp_path / "run", config, polars=True)
    found = checkpoints.load_facts(checkpoints.newest(tmp_path / "run", "best"))["best_metrics"]
    alone = Recommender.load(tmp_path / "run", device="cpu")
    alone.model.double()
    whole = alone.task(StreamTask, prepared=prepared, stream=StreamConfig())
    assert found == pytest.approx(whole.evaluate(alone.model), abs=1e-6)
    ranked = [[int(n) for n in (tmp_path / f"ranked-{rank}").read_text().split()] for rank in range(2)]
    assert len(ranked[0]) == len(ranked[1]) == config.train.epochs
    assert all(a + b == len(whole._valid) and abs(a - b) <= 1 for a, b in zip(*ranked, strict=True))


@pytest.mark.parametrize("loss", ["softmax", "sampled"])
def test_a_prepared_log_has_its_experts_too(prepared: Prepared, tmp_path: Path, loss: str) -> None:
    config = replace(CONFIG, experts=EXPERTS, projection=True)
    config = replace(config, objective=replace(config.objective, loss=loss, negatives=16, shared=4))
    made = fit_streamed(prepared, config, tmp_path / "run", progress=False, workers=1)
    plain = fit_experts(made.split.train, novel=False, timed=False, repeats=made.experts.repeats)
    assert len(made.split.log.user_ids) == prepared.manifest.users  # the sample is the whole log: it is small
    for mine, theirs in zip(made.experts.arrays().values(), plain.arrays().values(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
    loaded = Recommender.load(tmp_path / "run", device="cpu")
    assert loaded.evaluate(valid=True)["ndcg@10"] == made.evaluate(valid=True)["ndcg@10"]
    alone = ModelScorer(made.model, made.context)
    few = made.split.valid[:5]
    assert not torch.allclose(torch.as_tensor(alone(made.log, few)), torch.as_tensor(made.scorer(made.log, few)))
    job = BatchJob(run=tmp_path / "run", out=tmp_path / "out", parts=4, k=3)
    rows = pl.concat(pl.read_parquet(job.path(write_partition(job, n).number)) for n in range(4))
    everyone = made.recommend(users=made.log.user_ids.tolist(), k=3)
    both = rows.sort("user", "rank"), everyone.sort("user", "rank")
    assert both[0]["item"].to_list() == both[1]["item"].to_list()


def test_what_needs_every_event_at_once_is_refused(prepared: Prepared) -> None:
    for change in ({"start": "cooccurrence"}, {"protocol": "leave-one-out"}):
        with pytest.raises(InputError, match=next(iter(change))):
            fit_streamed(prepared, replace(CONFIG, **change), None, progress=False)
