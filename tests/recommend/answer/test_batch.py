"""Recommendations by partition are those of everyone, however often and wherever they are made."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from prism.errors import InputError
from prism.recommend.answer.batch import BatchJob, Done, read_partition, write_on_ray, write_partition
from prism.recommend.commands.production import update
from prism.recommend.config import FitConfig
from prism.recommend.data.prepared.prepare import prepare_log
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.partition import partition
from prism.recommend.recommender import Recommender
from prism.recommend.runs import storage
from prism.recommend.runs.refit import refit
from prism.recommend.runs.streaming import fit_streamed
from prism.recommend.training.task import BatchConfig
from prism.train.config import TrainConfig

LOG = synthetic_log(50, 30, 800, seed=4)
CONFIG = FitConfig(
    mixer="gated-deltanet", dim=8, layers=1, ffn=0, dropout=0.0, time_gaps=False, query_time=False, projection=False,
    experts=(), batching=BatchConfig(batch=8, length=12, windows="last"), train=TrainConfig(epochs=1, lr=0.01),
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batch") / "run"
    Recommender.fit(LOG, CONFIG, out=folder, progress=False, device="cpu")
    return folder


def everyone(job: BatchJob) -> pl.DataFrame:
    return pl.concat(pl.read_parquet(job.path(n)) for n in range(job.parts)).sort("user", "rank")


def test_the_partitions_together_are_everyone(run: Path, tmp_path: Path) -> None:
    job = BatchJob(run=run, out=tmp_path / "parts", parts=4, k=5)
    done = [write_partition(job, n) for n in range(4)]
    assert sum(one.users for one in done) == 50
    Recommender.load(run, device="cpu").recommend_all(tmp_path / "all.parquet", k=5)
    assert_frame_equal(everyone(job), pl.read_parquet(tmp_path / "all.parquet").sort("user", "rank"), rel_tol=1e-5)
    for n in range(4):
        assert {partition(user, 4) for user in pl.read_parquet(job.path(n))["user"].to_list()} == {n}


def test_made_again_nothing_changes_and_nobody_is_scored(run: Path, tmp_path: Path) -> None:
    job = BatchJob(run=run, out=tmp_path, parts=3, k=5)
    first = write_partition(job, 1)
    content = job.path(1).read_bytes()
    again = write_partition(job, 1)
    assert (first.scored, again.scored) == (first.users, 0)
    assert again.rows == first.rows
    assert job.path(1).read_bytes() == content
    assert write_partition(replace(job, k=4), 1).scored == first.users  # other options, other rows


def test_rows_of_a_call_that_was_stopped_are_not_kept_for_those_of_another(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = BatchJob(run=run, out=tmp_path / "out", parts=2, k=5)
    done = write_partition(job, 0)
    real = storage.write_frame

    def stopped(path: Path, frame: pl.DataFrame) -> None:
        if "users" in path.name:
            raise RuntimeError("stopped")
        real(path, frame)

    monkeypatch.setattr(storage, "write_frame", stopped)
    with pytest.raises(RuntimeError, match="stopped"):
        write_partition(replace(job, k=2), 0)
    monkeypatch.undo()
    assert write_partition(job, 0) == done


def test_only_users_with_new_events_are_scored_and_the_rest_is_as_before(run: Path, tmp_path: Path) -> None:
    before = BatchJob(run=run, out=tmp_path / "out", parts=2, k=5)
    assert all(write_partition(before, n).scored > 1 for n in range(2))
    newer = pl.DataFrame({"user": [7, 7, 9, 777], "item": [1, 2, 3, 4], "time": [2_000_000_000 + n for n in range(4)]})
    newer.write_csv(tmp_path / "newer.csv")
    later = replace(before, events=str(tmp_path / "newer.csv"))
    done = [write_partition(later, n) for n in range(2)]
    assert sum(one.scored for one in done) == 3
    fresh = replace(later, out=tmp_path / "fresh")
    for n in range(2):
        write_partition(fresh, n)
    assert_frame_equal(everyone(later), everyone(fresh), rel_tol=1e-5)


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a prepared log of six partitions, of which its sample has one."""
    folder = tmp_path_factory.mktemp("streamed")
    LOG.frame().write_parquet(folder / "log.parquet")
    prepared = prepare_log([str(folder / "log.parquet")], folder / "data", partitions=6)
    config = replace(CONFIG, batching=replace(CONFIG.batching, valid_queries=1))
    fit_streamed(prepared, config, folder / "run", progress=False, device="cpu", workers=0)
    return folder / "run"


def test_a_run_on_a_prepared_log_reads_its_partitions(streamed: Path, tmp_path: Path) -> None:
    jobs = [BatchJob(run=streamed, out=tmp_path / f"out{p}", parts=p, k=3) for p in (6, 2)]
    for job in jobs:
        assert sum(write_partition(job, n).users for n in range(job.parts)) == 50
    assert_frame_equal(everyone(jobs[0]), everyone(jobs[1]), rel_tol=1e-5)
    with pytest.raises(InputError, match="has 6 partitions"):
        write_partition(BatchJob(run=streamed, out=tmp_path, parts=4), 0)


def test_a_run_on_a_prepared_log_answers_for_all_its_users(streamed: Path, tmp_path: Path) -> None:
    model, job = Recommender.load(streamed, device="cpu"), BatchJob(run=streamed, out=tmp_path / "out", parts=6)
    for number in range(6):
        write_partition(job, number)
    assert model.log.n_users < 50
    assert model.recommend_all(tmp_path / "all.parquet") == 500
    rows = pl.read_parquet(tmp_path / "all.parquet").sort("user", "rank")
    assert_frame_equal(rows, everyone(job), rel_tol=1e-5)
    users = [u for u in LOG.user_ids.tolist() if u not in set(model.log.user_ids.tolist())][::-1]
    many = model.recommend(users=users)
    assert many["user"].unique(maintain_order=True).to_list() == users
    assert_frame_equal(many.sort("user", "rank"), rows.filter(pl.col("user").is_in(users)), rel_tol=1e-5)
    wanted = rows.filter(pl.col("user") == users[0])["item"].to_list()
    assert [one.item for one in model.recommend(str(users[0]))] == wanted
    assert [one.item for one in model.session(users[0]).recommend()] == wanted
    with pytest.raises(InputError, match=r"user 999 is not in .*data; for someone new, give a history"):
        model.recommend(999)


def test_what_would_take_the_sample_for_the_log_is_refused(streamed: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("user,item,time\n1,2,2000000000\n")
    said = "is not for a run on a prepared log .* `prism fit` the log itself, or `prism prepare` it with what is new"
    with pytest.raises(InputError, match=f"^refit {said}"):
        refit(streamed, tmp_path / "all", progress=False, device="cpu")
    with pytest.raises(InputError, match=f"^update {said}"):
        update(streamed, events=str(tmp_path / "new.csv"), device="cpu")
    with pytest.raises(InputError, match=rf"^with_events \(--events\) {said}"):
        Recommender.load(streamed, device="cpu").with_events(tmp_path / "new.csv")
    with pytest.raises(InputError, match=rf"^with_baseline \(--baseline\) {said}"):
        Recommender.load(streamed, device="cpu").with_baseline("markov")


@pytest.mark.parametrize("text", ["3", "4/4", "a/3", "-1/3", "1/"])
def test_a_partition_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="partition must be i/P"):
        read_partition(text)


@pytest.mark.slow
def test_ray_with_two_workers_writes_the_same_bytes_and_a_killed_worker_loses_nothing(
    run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="pip install 'prism-sequence[ray]'")
    here, there = (BatchJob(run=run, out=tmp_path / name, parts=4, k=5, device="cpu") for name in ("here", "there"))
    for n in range(4):
        write_partition(here, n)

    def dies_once(job: BatchJob, number: int) -> Done:
        import torch

        torch.set_num_threads(1)
        mark = job.out / f"tried-{number}"
        if number == 2 and not mark.exists():
            job.out.mkdir(parents=True, exist_ok=True)
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return write_partition(job, number)

    said: list[str] = []
    done = write_on_ray(there, "local", task=dies_once, workers=2, say=said.append)
    assert (there.out / "tried-2").exists()
    assert [one.number for one in done] == [0, 1, 2, 3]
    assert len(said) == 4
    for n in range(4):
        assert there.path(n).read_bytes() == here.path(n).read_bytes()
