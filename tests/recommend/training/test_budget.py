"""How many epochs there is time for: measured as training will be, and by one clock for all processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.clocks import settle
from support.processes import run_ranks
from support.sharded import CONFIG
from torch import Tensor, nn

from prism.recommend.data.splits import split as divide
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.recommender import Recommender
from prism.recommend.training import budget
from prism.recommend.training.task import RecommendationTask
from prism.train.prefetch import Prefetched
from prism.train.team import Team


@dataclass(frozen=True, kw_only=True)
class Counting(RecommendationTask):
    """Five batches whose loss notes with how many threads and on which device it is asked for."""

    form: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    asked: set[tuple[int, str]] = field(default_factory=set)

    def batches(self, epoch: int) -> Any:
        return self.form([torch.ones(2)] * 5)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        assert batch.device == next(model.parameters()).device
        self.asked.add((torch.get_num_threads(), batch.device.type))
        return torch.ones((), requires_grad=True) * 2, 2

    def evaluation_seconds(self, model: nn.Module, queries: int = 200) -> float:
        return 0.0


class Parts(list[Tensor]):
    def parts(self, n: int, most: int) -> list[Callable[[], Tensor]]:
        return [lambda: self[n]]


@pytest.mark.parametrize(
    ("kind", "device", "threads"),
    [(Parts, "cpu", 1), (Parts, "meta", 2), (partial(Prefetched, workers=1), "cpu", 2)],
)
def test_an_epoch_is_measured_where_it_is_trained_and_helpers_count_where_there_will_be_some(
    kind: Any, device: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if threads == 1 and not Team.possible():
        pytest.skip("helpers are forked, which is safe on Linux alone")
    made = Recommender._untrained(divide(synthetic_log(20, 20, 400), "global-time"), CONFIG)
    task = made.task(Counting, form=kind)
    ticks, before = count(), torch.get_num_threads()
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    monkeypatch.setattr(budget.os, "sched_getaffinity", lambda process: range(2), raising=False)
    torch.set_num_threads(2)
    try:
        seconds = budget.epoch_seconds(made.model, task, torch.device(device))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert task.asked == {(threads, device)}
    assert seconds == pytest.approx(1.2 * 5 / (2 * budget.GAIN if threads == 1 else 1))


@pytest.mark.parametrize("prepared", [False, True])
def test_processes_that_measure_different_times_train_for_as_many_epochs(
    prepared: bool, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    run_ranks(2, settle, data if prepared else None, tmp_path / "out", seconds=100, polars=True)
    first, other = ((tmp_path / "out" / f"{rank}.txt").read_text().splitlines() for rank in range(2))
    assert first == other
    assert first[-1].startswith("epochs 5")  # as many as the rule allows
    assert len(first) == (1 if prepared else 3)  # two of them rehearsals
