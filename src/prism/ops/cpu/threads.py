"""A kernel over ranges of independent items, on as many threads as PyTorch is set to use.

Numba's own parallel loops are not used: its thread pools abort or hang in a forked process, such as a worker of a
DataLoader, and compile several times longer. Kernels let go of the interpreter's lock, so Python's threads suffice.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch

# About 50 µs of work: below that, waking a thread costs more than it saves.
WORTH_A_THREAD = 2_000_000
_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    """A forked process inherits the pool but none of its threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_pool)


def run(task: Callable[[int, int], None], work: np.ndarray) -> None:
    """Calls task(begin, end) on ranges of the items that cover them all; work[i] is item i's multiply-adds."""
    global _pool
    total = int(work.sum())
    threads = min(torch.get_num_threads(), len(work), total // WORTH_A_THREAD)
    if threads <= 1:
        return task(0, len(work))
    shares = total * np.arange(1, threads) // threads
    cuts = [0, *(np.searchsorted(np.cumsum(work), shares) + 1).tolist(), len(work)]
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="prism")  # started as they are needed
    first, *others = pairwise(cuts)
    waiting = [_pool.submit(task, begin, end) for begin, end in others]
    task(*first)
    for other in waiting:
        other.result()
    return None
