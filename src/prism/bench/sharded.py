"""`prism bench sharded`: a training step with the item table divided between processes, as the catalogue grows."""

import os
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor

from prism.bench.measure import threads
from prism.config import positive
from prism.display.tables import show
from prism.errors import InputError
from prism.machine import peak_memory
from prism.ops.common.packing import Packing
from prism.recommend.config import PLAIN, FitConfig
from prism.recommend.data.log import without_events
from prism.recommend.data.splits import Split, no_queries
from prism.recommend.model.recommender import Events
from prism.recommend.training.objectives import ObjectiveConfig
from prism.recommend.training.sharded import ShardedTask, build_sharded
from prism.recommend.training.task import Batch, BatchConfig
from prism.train.config import TrainConfig
from prism.train.loop import Loop


def sharded(
    items: tuple[int, ...] = (100_000, 1_000_000, 10_000_000),
    processes: int = 2,
    dim: int = 64,
    windows: int = 32,
    length: int = 100,
    negatives: int = 2048,
    steps: int = 10,
) -> None:
    """Time of a step and memory of all processes, for catalogues of several sizes; made-up events.

    Args:
        items: Sizes of the catalogue.
        processes: Processes on this machine, one thread each, gloo between them.
        dim: Width of the model and of the item table.
        windows: Histories of a step, of each process.
        length: Events of a history.
        negatives: Items drawn, by all processes together.
        steps: Steps that are timed, after two that are not.
    """
    sizes = {"dim": dim, "windows": windows, "length": length, "negatives": negatives}
    positive(items=items, processes=processes, steps=steps, **sizes)
    rows, first = [], 0.0
    for size in items:
        found = measure(Case(size, processes, dim, windows, length, negatives, steps))
        first = first or found.seconds
        cells = [f"{size:,}", f"{1000 * found.seconds:.1f}", f"{found.seconds / first:.2f}", f"{found.bytes / 1e9:.2f}"]
        rows.append([*cells, f"{found.loss:.3f}"])
    show(
        f"a step of {processes} processes, {windows} × {length} events each, {negatives:,} drawn items, width {dim}",
        ["items", "ms per step", "times the first", "GB of all processes", "loss"],
        rows,
        caption="processor time of the slowest process, the median step; memory: the sum of what each held at most",
    )


@dataclass(frozen=True)
class Case:
    """One size of catalogue and batch, on so many processes."""

    items: int
    processes: int
    dim: int
    windows: int
    length: int
    negatives: int
    steps: int

    def config(self) -> FitConfig:
        """A plain model with the sampled loss."""
        return replace(
            PLAIN,
            dim=self.dim,
            layers=2,
            dropout=0.0,
            batching=BatchConfig(batch=self.windows, length=self.length, windows="last"),
            objective=ObjectiveConfig(loss="sampled", negatives=self.negatives, shared=256),
            train=TrainConfig(epochs=1, lr=2e-3),
        )


@dataclass(frozen=True)
class Found:
    """What one size took."""

    seconds: float
    bytes: float
    loss: float


def measure(case: Case) -> Found:
    """In processes of their own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn = get_context("spawn")
    results = spawn.SimpleQueue()
    workers = [spawn.Process(target=_work, args=(rank, port, case, results)) for rank in range(case.processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise InputError(f"a process failed at {case.items:,} items: is there memory enough?")
    found = [results.get() for _ in workers]
    return Found(max(one[0] for one in found), sum(one[1] for one in found), found[0][2])


def _work(rank: int, port: int, case: Case, results: Any) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case.processes)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    with threads(1):
        accelerator = Accelerator(cpu=True)
        group = dist.new_group() if case.processes > 1 else None
        config = case.config()
        model = build_sharded(config, case.items, group)
        task = _task(config, case)
        loop = Loop(model, task, config.train, accelerator)
        taken = []
        for _ in range(case.steps + 2):
            began = time.process_time()
            loop._update(_Steps(case))
            taken.append(time.process_time() - began)
        results.put((statistics.median(taken[2:]), peak_memory(), loop.at.mean_loss))
        if group is not None:
            dist.barrier()
            dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class _MadeUp(ShardedTask):
    """A catalogue without a log: every item as popular as any."""

    def own_counts(self, first: int, end: int) -> Tensor:
        return torch.ones(end - first, dtype=torch.int64)


def _task(config: FitConfig, case: Case) -> _MadeUp:
    log = without_events(np.arange(case.items))
    nothing = no_queries(case.items, remove_seen=False)
    split = Split(protocol="all", log=log, train=log, valid=nothing, test=nothing)
    nowhere: Any = None
    return _MadeUp(split=split, batching=config.batching, objective=config.objective, prepared=nowhere)


class _Steps(Sequence[Batch]):
    """Batches of random histories, another for each number."""

    def __init__(self, case: Case):
        self.case = case

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, n: Any) -> Any:
        case, rng = self.case, np.random.default_rng(n)
        count = case.windows * case.length
        targets = torch.from_numpy(rng.integers(case.items, size=count))
        tokens = targets.roll(1)
        tokens[:: case.length] = case.items
        limits = torch.arange(0, count + 1, case.length)
        nothing = torch.zeros(count, dtype=torch.int64)
        windows = torch.zeros(case.windows, 2, dtype=torch.int64)
        events = Events(tokens, nothing, torch.zeros(count, 2, dtype=torch.int64))
        return Batch(events, limits, targets, windows, None, Packing(tuple(limits.tolist())))
