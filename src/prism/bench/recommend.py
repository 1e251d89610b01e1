"""`prism bench recommend`: what a recommender costs at a given size: training, evaluation, a live user."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from accelerate import Accelerator

from prism.bench.measure import threads
from prism.config import positive
from prism.display.tables import show
from prism.machine import peak_memory
from prism.recommend.config import PLAIN, FitConfig
from prism.recommend.data.log import Log
from prism.recommend.data.logs import read_log
from prism.recommend.data.splits import Split, split
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.evaluation.ranking import evaluate
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.model.experts import EXPERTS
from prism.recommend.recommender import Recommender
from prism.recommend.training.objectives import Loss, ObjectiveConfig
from prism.recommend.training.task import BatchConfig, RecommendationTask
from prism.train.config import TrainConfig
from prism.train.loop import Loop

Lines = list[list[str]]


def recommend(
    users: int = 6040,
    items: int = 3706,
    events: int = 1_000_209,
    mixer: str = "prism",
    dim: int = 64,
    steps: int = 10,
    queries: int = 6040,
    lengths: tuple[int, ...] = (10, 100, 1000, 10_000),
    num_threads: int = 1,
    experts: bool = False,
    loss: Loss = "softmax",
    disturbed: bool = False,
) -> None:
    """Time and memory of reading, training steps, full-ranking evaluation and live sessions, on a made-up log.

    Args:
        users: Users of the log; the default sizes are ML-1M's, Amazon-Books has 31103, 339960 and 3319359.
        items: Items.
        events: Events.
        mixer: A name of `prism list`.
        dim: Width of the model.
        steps: Training steps that are timed, after two that are not.
        queries: Test queries that are evaluated.
        lengths: Events of history before a live user's first update.
        num_threads: Torch threads.
        experts: With the simple experts beside the model, as `prism fit` has them.
        loss: What is minimised; `sampled` is timed beside the exact softmax.
        disturbed: Also train with one thread and with all beside another program that wants a core.
    """
    positive(steps=steps, queries=queries, lengths=lengths, num_threads=num_threads)
    config = replace(
        PLAIN,
        mixer=mixer,
        dim=dim,
        layers=2,
        dropout=0.2,
        projection=experts,
        opening=0.5,
        experts=EXPERTS if experts else (),
        protocol="leave-one-out",
        objective=ObjectiveConfig(loss=loss),
        batching=BatchConfig(batch=32, length=200, windows="last"),
        train=TrainConfig(),
    )
    rows: Lines = []
    with threads(num_threads):
        log = _read(rows, synthetic_log(users, items, events))
        with _timed(rows, "divide it"):
            divided = split(log, config.protocol)
        made, task = Recommender.opening(divided, config)
        _training(rows, made, task, steps)
        if loss == "sampled":
            _beside_exact(rows, divided, config, steps)
        _evaluation(rows, made, queries)
        _sessions(rows, made, lengths)
    _threads(rows, made, task, steps, "")
    if disturbed:
        with _busy():
            _threads(rows, made, task, steps, ", beside a busy process")
    rows.append(["peak memory of the process", f"{peak_memory() / 2**30:.2f} GB"])
    show(f"{mixer}, D={dim}, {users:,} users, {items:,} items, {events:,} events", ["", "measured"], rows)


def _read(rows: Lines, log: Log) -> Log:
    """The log as a user's file of events in the order of time, read back."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "events.csv"
        log.frame().sort("time").write_csv(file)
        size = file.stat().st_size / 2**20
        with _timed(rows, f"read the log from a CSV of {size:,.0f} MB"):
            return read_log(file)


def _training(rows: Lines, made: Recommender, task: RecommendationTask, steps: int) -> None:
    clock, rate, batches = _steps(made, task, steps)
    if clock:
        median = statistics.median(clock)
        rows.append(["training step, median", f"{median * 1e3:.0f} ms, {rate:,.0f} tokens/s"])
        rows.append([f"an epoch of {batches:,} steps", f"{median * batches:.0f} s"])


def _beside_exact(rows: Lines, divided: Split, config: FitConfig, steps: int) -> None:
    """The config's loss and the exact softmax, in turn, twice; the better of each, and their ratio."""
    configs = {loss: replace(config, objective=ObjectiveConfig(loss=loss)) for loss in ("sampled", "softmax")}
    rates = dict.fromkeys(configs, 0.0)
    made = {loss: Recommender.opening(divided, one) for loss, one in configs.items()}
    for loss in [*made, *made]:
        rates[loss] = max(rates[loss], _steps(*made[loss], steps)[1])
    for loss, rate in rates.items():
        rows.append([f"training, loss {loss}", f"{rate:,.0f} tokens/s"])
    ratio = f"{rates['sampled'] / rates['softmax']:.1f}" if rates["softmax"] else "not measured"
    rows.append(["tokens/s, sampled loss / exact softmax", ratio])


def _steps(made: Recommender, task: RecommendationTask, steps: int) -> tuple[list[float], float, int]:
    """(seconds of each step, tokens per second, steps of an epoch), after two steps that are not timed."""
    loop = Loop(made.model, task, made.config.train, Accelerator(cpu=not torch.cuda.is_available()))
    batches = loop.batches(0)
    made.model.train()
    clock, before = [], 0
    for n in range(min(steps + 2, len(batches))):
        start = time.perf_counter()
        loop.update(batches)
        if n >= 2:  # the first ones compile
            clock.append(time.perf_counter() - start)
        else:
            before = loop.at.tokens
    loop.end()
    return clock, (loop.at.tokens - before) / sum(clock) if clock else 0.0, len(batches)


def _threads(rows: Lines, made: Recommender, task: RecommendationTask, steps: int, where: str) -> None:
    """Training on one thread and on all, in turn, twice; the better of each, and their ratio."""
    rates = {1: 0.0, os.cpu_count() or 1: 0.0}
    for count in [*rates, *rates]:
        with threads(count):
            rates[count] = max(rates[count], _steps(made, task, steps)[1])
    for count, rate in rates.items():
        rows.append([f"training on {count} thread{'s' * (count > 1)}{where}", f"{rate:,.0f} tokens/s"])
    rows.append([f"all threads / one{where}", f"{rates[max(rates)] / rates[1]:.2f}" if rates[1] else "not measured"])


@contextmanager
def _busy() -> Iterator[None]:
    """Another program that takes what it gets of one core, for ten minutes at most."""
    work = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", work]) as other:
        try:
            yield
        finally:
            other.kill()


def _evaluation(rows: Lines, made: Recommender, queries: int) -> None:
    scorer, asked = ModelScorer(made.model, made.context), made.split.test[:queries]
    with _timed(rows, f"encode {len(asked):,} histories"):
        features = scorer.features(made.log, asked)
    found = iter(features.split([len(part) for part in asked.blocks(1024)]))
    with _timed(rows, "rank them among all items, beyond encoding"), torch.inference_mode():
        evaluate(lambda log, part: made.model.scores(next(found)), made.log, asked, block=1024)


def _sessions(rows: Lines, made: Recommender, lengths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for length in lengths:
        session = made.session(history=made.log.item_ids[rng.integers(made.model.items, size=length)].tolist())
        clock = []
        for item in made.log.item_ids[rng.integers(made.model.items, size=200)].tolist():
            start = time.perf_counter()
            session.update(item)
            session.recommend(10)
            clock.append(time.perf_counter() - start)
        rows.append([f"update + recommend after {length:,} events, median", f"{statistics.median(clock) * 1e3:.2f} ms"])


@contextmanager
def _timed(rows: Lines, what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    rows.append([what, f"{time.perf_counter() - start:.2f} s"])
