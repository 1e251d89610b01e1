"""Timing and peak memory: threads pinned, systems taken in turns, medians; memory in a process of its own."""

import ctypes
import gc
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Job = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One system at one size."""

    system: str
    work: str
    """What was timed: `forward`, `forward+backward`, …"""
    tokens: int
    seconds: float
    """Median over the repeats."""
    fastest: float
    repeats: int
    size: dict[str, int] = field(default_factory=dict)
    peak_bytes: int | None = None
    """Memory beyond the inputs at the highest moment; None where it was not measured."""

    @property
    def tokens_per_second(self) -> float:
        """Throughput at the median."""
        return self.tokens / self.seconds


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Runs the body with so many torch threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_turns(jobs: dict[str, Job], repeats: int, patience: float = 8.0) -> dict[str, list[float]]:
    """Seconds of each job over the repeats, one repeat of all jobs after the other so that drift hits all alike.

    A job that has used up `patience` seconds is repeated no further; every job is timed once after its warm-up.
    """
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():  # warm up: compilation, first touch of memory
        job()
    for _ in range(repeats):
        for name, job in jobs.items():
            if sum(seconds[name]) <= patience:
                seconds[name].append(_timed(job))
    return seconds


def _timed(job: Job) -> float:
    gc.collect()
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def summarise(seconds: list[float]) -> dict[str, Any]:
    """The fields of a `Measurement` that come from the clock."""
    return {"seconds": statistics.median(seconds), "fastest": min(seconds), "repeats": len(seconds)}


def measured(
    make_jobs: Callable[..., dict[str, Job]],
    cases: list[tuple[Any, ...]],
    repeats: int,
    *,
    num_threads: int,
    memory: bool,
    patience: float = 8.0,
) -> list[dict[str, dict[str, Any]]]:
    """For each case and each job of `make_jobs(*case)` what a `Measurement` has of the clock and of memory."""
    with threads(num_threads):
        seconds = [in_turns(make_jobs(*case), repeats, patience) for case in cases]
    peaks = peak_memory(make_jobs, cases) if memory else [{} for _ in cases]
    return [
        {name: summarise(clock) | {"peak_bytes": peak.get(name)} for name, clock in times.items()}
        for times, peak in zip(seconds, peaks, strict=True)
    ]


def peak_memory(make_jobs: Callable[..., dict[str, Job]], cases: list[tuple[Any, ...]]) -> list[dict[str, int]]:
    """Peak bytes of each job of `make_jobs(*case)` for each case, in a fresh process that gives freed memory back."""
    if platform.system() != "Linux":
        return [{} for _ in cases]
    # not multiprocessing's own pool, which waits for ever where its process dies
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_peaks, make_jobs, cases).result()


def _peaks(make_jobs: Callable[..., dict[str, Job]], cases: list[tuple[Any, ...]]) -> list[dict[str, int]]:
    torch.set_num_threads(1)
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: tensors are mapped, so freeing them shows
    measured = []
    for case in cases:
        peaks: dict[str, int] = {}
        for name, job in make_jobs(*case).items():
            job()  # compilation and library buffers are not the job's
            gc.collect()
            libc.malloc_trim(0)
            before = _status("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # the kernel forgets the peak so far
            job()
            peaks[name] = max(0, _status("VmHWM") - before)
        measured.append(peaks)
    return measured


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def copy_rate(megabytes: int = 256, repeats: int = 5) -> float:
    """Bytes per second read plus written by a large copy: the practical bandwidth of memory."""
    a = torch.empty(megabytes << 18)
    b = torch.empty_like(a)
    return 2 * a.numel() * 4 / min(in_turns({"copy": lambda: b.copy_(a)}, repeats)["copy"])
