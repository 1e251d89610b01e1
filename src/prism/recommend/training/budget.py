"""How many epochs a time suffices for: measured on a few batches before training."""

import os
import statistics
import time

import numpy as np
import torch
from accelerate.utils import send_to_device

from prism.recommend.config import FitConfig
from prism.recommend.model.recommender import RecommenderModel
from prism.recommend.training.task import RecommendationTask
from prism.train.folder import is_first_process
from prism.train.processes import world
from prism.train.team import Divisible, Team

# What each process of several adds to the speed of one that trains alone: measured on two cores.
GAIN = 0.8


def affordable_epochs(config: FitConfig, each: float, seconds: float, progress: bool) -> int:
    """As many as the rule allows and the time suffices for, where an epoch takes `each`."""
    most = config.train.epochs
    epochs = int(np.clip(int(seconds / each), 1, most))
    if epochs < most and progress and is_first_process():
        why = f"an epoch takes about {each:.0f} s, and {config.minutes:g} minutes are given"
        print(f"epochs {epochs}: {why}", flush=True)
    return epochs


def epoch_seconds(model: RecommenderModel, task: RecommendationTask, device: torch.device, batches: int = 9) -> float:
    """Measured on a few batches and validation queries on the device that trains; the model stays there, as it was."""
    whole, clock, threads = task.batches(0), [], torch.get_num_threads()
    alone = device.type == "cpu" and world() == 1
    helped = alone and threads > 1 and Team.possible() and isinstance(whole, Divisible)
    torch.set_num_threads(1 if helped else threads)  # what a process of the team does alone
    model.to(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model.train()
        for n in (0, *range(min(batches, len(whole)))):  # the first batch twice: its first time compiles
            began = time.monotonic()
            loss, _ = task.loss(model, send_to_device(whole[n], device))
            loss.backward()
            float(loss.detach())  # waits for a GPU
            clock.append(time.monotonic() - began)
        model.zero_grad(set_to_none=True)
    torch.set_num_threads(threads)
    step = statistics.median(clock[1:])
    if helped:
        step /= GAIN * min(threads, len(os.sched_getaffinity(0)))
    # a fifth more for the optimiser and for what else the machine does
    return 1.2 * step * len(whole) + task.evaluation_seconds(model)
