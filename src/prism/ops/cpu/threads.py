"""A kernel over ranges of independent items, on as many threads as PyTorch is set to use.

Numba's own parallel loops are not used: its thread pools abort or hang in a forked process, such as a worker of a
DataLoader, and compile several times longer. Kernels let go of the interpreter's lock, so Python's threads suffice.
"""

import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch

# About 50 µs of work: below that, waking a thread costs more than it saves.
WORTH_A_THREAD = 2_000_000
Scratch = Callable[[], tuple[Any, ...]]
_pool: ThreadPoolExecutor | None = None
_threaded = _forked = False  # whether this process has used threads; whether it was forked from one that had


def _forget_pool() -> None:
    """A forked process inherits the pool but none of its threads."""
    global _pool, _forked
    _pool, _forked = None, _threaded


def warn_if_forked() -> None:
    """Says once, in a process forked from one that used threads, that PyTorch may wait in it for threads that died."""
    global _forked
    if _forked and torch.get_num_threads() > 1:
        _forked = False
        warnings.warn(
            "this process was forked from one that computed on several threads: PyTorch may hang in it; call "
            "torch.set_num_threads(1) in it, or start it with multiprocessing's 'spawn'",
            RuntimeWarning,
            stacklevel=3,
        )


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_pool)


def run(kernel: Callable[..., None], work: np.ndarray, args: tuple[Any, ...] = (), scratch: Scratch = tuple) -> None:
    """Calls kernel(*scratch(), *args, begin, end) on ranges of the items that cover them all.

    Args:
        kernel: What each thread runs on its range.
        work: The multiply-adds of each item.
        args: What all threads are given.
        scratch: Makes the memory of one thread.
    """
    global _pool, _threaded
    warn_if_forked()
    _threaded = _threaded or torch.get_num_threads() > 1
    total = int(work.sum())
    threads = min(torch.get_num_threads(), len(work), total // WORTH_A_THREAD)
    if threads <= 1:
        return kernel(*scratch(), *args, 0, len(work))
    shares = total * np.arange(1, threads) // threads
    cuts = [0, *(np.searchsorted(np.cumsum(work), shares) + 1).tolist(), len(work)]
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="prism")  # started as they are needed
    first, *others = pairwise(cuts)
    waiting = [_pool.submit(kernel, *scratch(), *args, *span) for span in others]
    kernel(*scratch(), *args, *first)
    for other in waiting:
        other.result()
    return None
