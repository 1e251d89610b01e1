"""A recommender small enough to train in seconds, for tests that start processes of their own."""

from dataclasses import replace
from pathlib import Path

import torch

from prism.recommend.config import PLAIN
from prism.recommend.data.log import Log
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.recommender import Recommender
from prism.recommend.training.task import BatchConfig
from prism.train.config import TrainConfig

CONFIG = replace(
    PLAIN,
    dim=16,
    layers=1,
    dropout=0.2,
    protocol="leave-one-out",
    batching=BatchConfig(batch=4, length=20, windows="last"),
    train=TrainConfig(epochs=4, save_seconds=0, log_steps=3),
)


def log() -> Log:
    return synthetic_log(60, 50, 1500)


def fit(out: Path) -> None:
    torch.set_num_threads(1)
    Recommender.fit(log(), CONFIG, out=out, progress=False)
