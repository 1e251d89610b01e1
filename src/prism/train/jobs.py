"""Many runs at a time, each result a JSON of its own: started again, what is there is not run again."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import active_children, get_context
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from prism.files import refuse_file, write_whole
from prism.machine import use_threads
from prism.train.settings import read_settings, refuse_others


@runtime_checkable
class Runnable(Protocol):
    """What a process can be given."""

    def run(self) -> Any:
        """The run itself."""


@runtime_checkable
class Job(Runnable, Protocol):
    """One run whose result is kept; hashable, and sent to other processes."""

    def path(self, out: Path) -> Path:
        """Where its result lies."""

    def settings_json(self) -> dict[str, Any]:
        """What must be the same for a result to be this run's."""

    def run(self) -> Any:
        """The run itself; its result is a dataclass."""

    def read(self, record: dict[str, Any]) -> Any:
        """The result whose fields a file holds."""

    def line(self, result: Any) -> str:
        """The job and its result, for the screen."""


R = TypeVar("R", bound=Runnable)
J = TypeVar("J", bound=Job)


def run_jobs(jobs: Sequence[J], out: Path, processes: int = 1, threads: int | None = None) -> dict[J, Any]:
    """All results, those that `out` holds read from it, the others run (`run_all`) and written there one by one."""
    refuse_file(out)
    done = finished(jobs, out)
    missing = [job for job in jobs if job not in done]
    if done:
        print(f"{len(done)} of {len(jobs)} runs are in {out} already", flush=True)
    for n, (job, result) in enumerate(run_all(missing, processes, threads), 1):
        done[job] = result
        write_whole(job.path(out), json.dumps(job.settings_json() | asdict(result), indent=1).encode())
        print(f"{n}/{len(missing)}  {job.line(result)}", flush=True)
    return {job: done[job] for job in jobs}


def finished(jobs: Sequence[J], out: Path) -> dict[J, Any]:
    """The results that `out` holds."""
    return {job: result for job in jobs if (result := _read(job, out)) is not None}


def at_once(device: torch.device, threads: int | None = None) -> int:
    """Runs to start at a time: as many as there are cores for us, of one thread or `threads` each; one on a GPU."""
    if device.type != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // (threads or 1))


def run_all(jobs: Sequence[R], processes: int, threads: int | None = None) -> Iterator[tuple[R, Any]]:
    """Each job with its result, as it ends; `processes` at a time, then each on one thread, or on `threads`."""
    if processes == 1 or len(jobs) < 2:
        for job in jobs:
            yield job, job.run()
        return
    # spawned: a forked child inherits torch's thread pool in whatever state it is
    with _passing_on_sigterm(), ProcessPoolExecutor(min(processes, len(jobs)), get_context("spawn")) as pool:
        waiting, running = list(jobs), dict[Future[Any], R]()
        while waiting or running:
            # no more than can run: what lies in the pool's queue would still be run after Ctrl-C
            while waiting and len(running) < processes:
                job = waiting.pop(0)
                running[pool.submit(_with_threads, job, threads or 1)] = job
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for one in finished:
                yield running.pop(one), one.result()


def _with_threads(job: Runnable, threads: int) -> Any:
    use_threads(threads)
    return job.run()


@contextmanager
def _passing_on_sigterm() -> Iterator[None]:
    """`kill` reaches this process alone, Ctrl-C all of them: children get the signal too, so that they can save."""

    def stop(number: int, frame: FrameType | None) -> None:
        for child in active_children():
            child.terminate()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _read(job: Job, out: Path) -> Any:
    path = job.path(out)
    if not path.exists():
        return None
    record, wanted = read_settings(path, "remove it, and it will be run again"), job.settings_json()
    refuse_others(path, wanted, record, "choose another --out, or remove it")
    return job.read({name: value for name, value in record.items() if name not in wanted})
