"""How many epochs a time suffices for: measured on a few batches before training."""

import time
from pathlib import Path

import numpy as np
import torch

from prism.recommend.config import FitConfig
from prism.recommend.model.recommender import RecommenderModel
from prism.recommend.runs import storage
from prism.recommend.training.task import RecommendationTask
from prism.train.folder import is_first_process
from prism.train.jobs import at_once


def affordable_epochs(
    model: RecommenderModel,
    task: RecommendationTask,
    config: FitConfig,
    seconds: float,
    out: Path | None,
    progress: bool,
) -> int:
    """As many as the rule allows and the time suffices for; of a run that goes on, what it began with."""
    if out is not None and (out / storage.CONFIG).exists():
        return storage.read_config(out).train.epochs
    most, each = config.train.epochs, _epoch_seconds(model, task)
    epochs = int(np.clip(int(seconds / each), 1, most))
    if epochs < most and progress and is_first_process():
        why = f"an epoch takes about {each:.0f} s, and {config.minutes:g} minutes are given"
        print(f"epochs {epochs}: {why}", flush=True)
    return epochs


def _epoch_seconds(model: RecommenderModel, task: RecommendationTask, batches: int = 9) -> float:
    """Measured on a few batches and validation queries; the model is left as it was."""
    whole, making, steps = task.batches(0), [], []
    with torch.random.fork_rng(devices=[]):
        model.train()
        for n in range(min(batches, len(whole))):
            began = time.monotonic()
            batch = whole[n]
            made = time.monotonic()
            task.loss(model, batch)[0].backward()
            making.append(made - began)
            steps.append(time.monotonic() - made)
        model.zero_grad(set_to_none=True)
    make, step = (sorted(clock)[len(clock) // 2] for clock in (making, steps))  # the first compiles
    # batches are made beside the step, where there is a core for that
    step = max(make, step) if at_once() > 1 else make + step
    # a fifth more for the optimiser and for what else the machine does
    return 1.2 * step * len(whole) + task.evaluation_seconds(model)
