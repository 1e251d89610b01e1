"""A divided item table trains as a whole one does, on any number of processes, also after a kill."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from support.processes import run_ranks

from prism.errors import InputError
from prism.recommend.config import FitConfig
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.data.prepared.prepare import prepare_log
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.recommender import Recommender
from prism.recommend.streaming import fit_streamed, stream_task
from prism.recommend.training.objectives import ObjectiveConfig
from prism.recommend.training.sharded import ShardedTask, build_sharded
from prism.recommend.training.stream import StreamConfig, sample
from prism.recommend.training.task import BatchConfig
from prism.train import checkpoints
from prism.train.config import TrainConfig
from prism.train.journal import read_journal

CONFIG = FitConfig(
    mixer="gated-deltanet", dim=8, layers=1, ffn=0, dropout=0.0, time_gaps=False, query_time=False, projection=False,
    experts=(), batching=BatchConfig(batch=3, length=10, windows="all"),
    train=TrainConfig(epochs=2, lr=0.01, log_steps=1, save_seconds=0.0),
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    synthetic_log(90, 41, 3000, seed=5).frame().write_parquet(folder / "log.parquet")
    prepare_log([str(folder / "log.parquet")], folder / "data", partitions=8)
    return folder / "data"


def fit(data: Path, out: Path, config: FitConfig, stop: int | None = None, signals: bool = False) -> None:
    """In float64; after `stop` updates the process asks for an end, or is killed."""
    torch.set_default_dtype(torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        left = [stop]

        def any_asked(self: object, *asked: bool) -> list[bool]:
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return [False, True]  # saves after every update

        if stop is not None:
            patch.setattr("prism.train.loop.Loop._any", any_asked)
        fit_streamed(Prepared.open(data), config, out, progress=False, device="cpu", workers=0, shard_items=True)
    torch.set_default_dtype(torch.float32)


def fresh() -> None:
    AcceleratorState._reset_state(True)
    PartialState._reset_state()


def on_rank(rank: int, data: Path, out: Path, config: FitConfig, stop: int | None = None) -> None:
    fresh()
    fit(data, out, config, stop)


def losses(out: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_journal(out / "log.jsonl") if "loss" in line}


@pytest.mark.parametrize("loss", ["softmax", "sampled"])
def test_one_process_with_a_divided_table_has_the_loss_and_gradients_of_a_whole_one(data: Path, loss: str) -> None:
    prepared = Prepared.open(data)
    config = replace(CONFIG, objective=ObjectiveConfig(loss=loss, negatives=16, shared=4))
    split = sample(prepared, 100)
    model = build_sharded(config, split.train.n_items, None)
    plain = Recommender._untrained(split, config)
    plain.model.load_state_dict(model.state_dict())
    task = stream_task(plain, prepared, StreamConfig(workers=0))
    batch = task.batches(0)[3]
    found = []
    divided = stream_task(plain, prepared, StreamConfig(workers=0), ShardedTask)
    for made, of in ((plain.model, task), (model, divided)):
        torch.manual_seed(1)
        value, count = of.loss(made, batch)
        value.backward()
        grads = {name: p.grad.to_dense() for name, p in made.named_parameters()}
        found.append((value, count, grads, of.evaluate(made.eval())))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    for name, grad in found[0][2].items():
        torch.testing.assert_close(found[1][2][name], grad, msg=lambda m, n=name: f"{n}: {m}")
    assert found[1][3] == pytest.approx(found[0][3], abs=1e-6)


def test_two_processes_follow_the_loss_of_one_and_any_number_goes_on_after_a_kill(data: Path, tmp_path: Path) -> None:
    one = replace(CONFIG, train=replace(CONFIG.train, accumulate=2))
    fresh()
    fit(data, tmp_path / "one", one)
    run_ranks(2, on_rank, data, tmp_path / "two", CONFIG)
    a, b = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert a.keys() == b.keys()
    assert len(a) >= 50
    assert [b[step] for step in a] == pytest.approx(list(a.values()), rel=1e-5)
    whole, halves = (checkpoints.newest(tmp_path / name, "best") for name in ("one", "two"))
    assert [p.name for p in sorted(halves.glob("model-*"))] == ["model-00000.safetensors", "model-00001.safetensors"]
    metrics = [checkpoints.load_facts(path)["best_metrics"] for path in (whole, halves)]
    assert metrics[1] == pytest.approx(metrics[0], abs=1e-6)
    loaded = Recommender.load(tmp_path / "two", device="cpu")
    assert len(loaded.recommend(history=[1, 2, 3], k=5)) == 5

    # killed on two processes, gone on with on one, killed again, finished on two
    with pytest.raises(AssertionError):
        run_ranks(2, on_rank, data, tmp_path / "killed", CONFIG, 20)
    with pytest.raises(AssertionError):
        run_ranks(1, on_rank, data, tmp_path / "killed", CONFIG, 3)
    steps = [checkpoints.load_facts(checkpoints.newest(tmp_path / "killed", "last"))["step"]]
    run_ranks(2, on_rank, data, tmp_path / "killed", CONFIG)
    assert steps == [23]
    facts = checkpoints.load_facts(checkpoints.newest(tmp_path / "killed", "last"))
    assert facts["finished"]
    assert facts["best_metrics"].keys() == metrics[0].keys()


def test_what_a_divided_table_cannot_have_is_refused(data: Path) -> None:
    with pytest.raises(InputError, match="item_bias"):
        build_sharded(replace(CONFIG, item_bias=True), 10, None)
    config = replace(CONFIG, train=replace(CONFIG.train, epochs=0))
    with pytest.raises(InputError, match="epochs must be given"):
        fit_streamed(Prepared.open(data), config, None, progress=False, device="cpu", shard_items=True)
