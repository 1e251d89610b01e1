"""Batches made beside the training step: the next ones in threads, in the order in which they were asked for."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Prefetched(Sequence[Any]):
    """The same sequence; while one element is used, `ahead` of those that come next are made by `workers` threads.

    What comes next follows from the last two that were asked for: every process of several takes its own, in steps.
    An element is a function of its index, so that what is made does not depend on `workers`.
    """

    def __init__(self, of: Sequence[Any], *, workers: int, ahead: int = 4):
        self.of, self.ahead = of, ahead
        self._pool = ThreadPoolExecutor(workers, "batches")
        self._coming: dict[int, Future[Any]] = {}
        self._last: int | None = None

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, n: Any) -> Any:
        if not 0 <= n < len(self):
            raise IndexError(n)
        step = 1 if self._last is None else n - self._last
        self._last = n
        mine = self._coming.pop(n, None)
        if step > 0:
            wanted = range(n + step, min(n + step * self.ahead + 1, len(self)), step)
            for gone in [m for m in self._coming if m not in wanted]:
                self._coming.pop(gone).cancel()
            for m in wanted:
                if m not in self._coming:
                    self._coming[m] = self._pool.submit(self.of.__getitem__, m)
        return self.of[n] if mine is None else mine.result()

    def __del__(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def beside_the_step(batches: Sequence[Any]) -> Prefetched:
    """Batches that are made while the step before runs, by one thread where the task does not say by how many."""
    return batches if isinstance(batches, Prefetched) else Prefetched(batches, workers=1, ahead=2)
