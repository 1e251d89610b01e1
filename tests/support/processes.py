"""Some processes with gloo between them, each running one function."""

import multiprocessing
import os
import socket
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState


def run_ranks(
    world: int, target: Callable[..., None], *args: object, seconds: float = 240, polars: bool = False
) -> None:
    """target(rank, *args) in `world` processes that can reach each other; the first failure is raised here.

    They are forked from this one, which is quick; polars would wait in them for threads that died. With `polars` they
    come from a process that has used none, and the target must be a function of `support`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork: Any = multiprocessing.get_context("forkserver" if polars else "fork")
    if polars:
        fork.set_forkserver_preload(["support.sharded"])
    failures = fork.SimpleQueue()
    workers = [fork.Process(target=_run, args=(rank, world, port, failures, target, args)) for rank in range(world)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds)
        if worker.is_alive():
            worker.kill()
            worker.join()
    assert failures.empty(), failures.get()
    assert [worker.exitcode for worker in workers] == [0] * world


def _run(rank: int, world: int, port: int, failures: object, target: Callable[..., None], args: object) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # what this process was forked from may have trained by itself (`support.warm` does), and accelerate remembers that
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        target(rank, *args)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        failures.put(f"process {rank}:\n{traceback.format_exc()}")  # type: ignore[attr-defined]
        os._exit(1)  # the others wait for this one otherwise
