"""A training on a prepared log, with a divided item table or a whole one, in a process of its own."""

import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from prism.recommend.config import FitConfig
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.evaluation.ranking import evaluate
from prism.recommend.runs.streaming import fit_streamed
from prism.recommend.training import task
from prism.recommend.training.task import BatchConfig
from prism.train.config import TrainConfig
from prism.train.loop import Loop

CONFIG = FitConfig(
    mixer="gated-deltanet", dim=8, layers=1, ffn=0, dropout=0.0, time_gaps=False, query_time=False, projection=False,
    experts=(), batching=BatchConfig(batch=3, length=10, windows="all"),
    train=TrainConfig(epochs=2, lr=0.01, log_steps=1, save_seconds=0.0),
)  # fmt: skip


def fit(rank: int, data: Path, out: Path, config: FitConfig, kill_after: int | None = None) -> None:
    """In float64. With `kill_after` every update is saved, and after so many the process is killed."""
    torch.set_default_dtype(torch.float64)
    left = [kill_after]

    def any_asked(self: Loop, *asked: bool) -> list[bool]:
        if left[0] is None:
            return [False, False]
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return [False, True]

    with patch.object(Loop, "_any", any_asked):
        fit_streamed(Prepared.open(data), config, out, progress=False, device="cpu", workers=0, shard_items=True)


def fit_whole(rank: int, data: Path, out: Path, config: FitConfig) -> None:
    """Every process has all items; leaves the number of queries that it ranked beside the run."""
    torch.set_default_dtype(torch.float64)
    ranked: list[int] = []

    def counted(scorer: Any, log: Any, queries: Any, **options: Any) -> Any:
        ranked.append(len(queries))
        return evaluate(scorer, log, queries, **options)

    with patch.object(task, "evaluate", counted):
        fit_streamed(Prepared.open(data), config, out, progress=False, device="cpu", workers=0)
    out.with_name(f"ranked-{rank}").write_text(" ".join(map(str, ranked)))
