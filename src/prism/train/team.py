"""One step on several cores: each process takes a part of the batch, makes it, and computes its gradients alone.

Threads that share every single operation, most of them short, wait for each other after each one, and Python's lock
lets only one of them prepare the next. So helpers are forked before the first step: they share the weights' memory
with the process that trains, and have memory for gradients that it reads. All meet once, at the end of a step; a
program that wants one of the cores holds them up no more than it must.

What is random in a part depends on the step's seed and on the part; gradients are added in order.
"""

import mmap
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

# Seconds after which a helper looks whether anybody still trains.
ALIVE = 5.0
Loss = Callable[[Any], tuple[Tensor, int]]


@runtime_checkable
class Divisible(Protocol):
    """Batches that can be made in parts."""

    def parts(self, n: int, most: int) -> Sequence[Callable[[], Any]]:
        """Makers of batches that hold between them what batch n holds: at most so many, each worth a core."""


class Order(NamedTuple):
    """What a helper is to do."""

    epoch: int
    batch: int
    seed: int


class Team:
    """This process and its helpers, which end with it."""

    def __init__(self, size: int, model: nn.Module, batches: Callable[[int], Sequence[Any]], loss: Loss):
        self.size, self.model, self._loss, self._batches = size, model, loss, batches
        self._now: tuple[int, Sequence[Any]] | None = None
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        for weight in self.weights:
            weight.data = _shared(weight.shape, weight.dtype).copy_(weight.data)
        self._helpers = [Helper(part, self) for part in range(1, size)]

    @staticmethod
    def possible() -> bool:
        """Whether processes can be forked safely; elsewhere PyTorch's threads share each operation."""
        return sys.platform == "linux"

    def backward(self, order: Order) -> tuple[float, int]:
        """Adds the gradients of all parts to the weights'; gives (sum of the loss, tokens)."""
        makers = self.makers(order)
        busy = self._helpers[: len(makers) - 1]
        for helper in busy:
            helper.ask(order)
        loss, total = self._part(makers[0])
        for helper in busy:
            more, count = helper.collect()
            loss, total = loss + more, total + count
        return loss, total

    def makers(self, order: Order) -> Sequence[Callable[[], Any]]:
        """Of the parts of a batch; in every process the same."""
        if self._now is None or self._now[0] != order.epoch:
            self._now = (order.epoch, self._batches(order.epoch))
        return self._now[1].parts(order.batch, self.size)  # type: ignore[attr-defined]

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step of the optimiser: OpenMP's threads, which would wait for work on the helpers' cores, have none."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def end(self) -> None:
        """Ends the helpers; the weights get memory of their own again."""
        for helper in self._helpers:
            helper.end()
        for weight in self.weights:
            weight.data = weight.data.clone()

    def _part(self, make: Callable[[], Any]) -> tuple[float, int]:
        loss, count = self._loss(make())
        loss.backward()
        return float(loss.detach().double()), count


class Helper:
    """A forked process that takes part number `part` of every batch."""

    def __init__(self, part: int, team: Team):
        self.part, self.team = part, team
        self.numbers = [_shared(weight.shape, weight.dtype) for weight in team.weights]
        self.rows = [_shared(weight.shape[:1], torch.int64) for weight in team.weights]  # of a sparse gradient
        context = get_context("fork")
        self.mine, theirs = context.Pipe()
        self.parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking a process that has threads: see _serve
            self.process = context.Process(target=self._serve, args=(theirs,), daemon=True)
            self.process.start()
        theirs.close()

    def ask(self, order: Order) -> None:
        self.mine.send(order)

    def collect(self) -> tuple[float, int]:
        """Waits for its part, and adds what it found to the weights' gradients."""
        try:
            found = self.mine.recv()
        except EOFError:
            raise RuntimeError(f"a helper of training ended (exit code {self.process.exitcode})") from None
        if isinstance(found, BaseException):
            raise found
        loss, count, kinds = found
        for weight, kind, numbers, rows in zip(self.team.weights, kinds, self.numbers, self.rows, strict=True):
            if kind is None:
                continue
            grad = numbers if kind < 0 else _sparse(rows[:kind].clone(), numbers[:kind].clone(), weight.shape)
            weight.grad = grad.clone() if weight.grad is None else weight.grad + grad
        return loss, count

    def end(self) -> None:
        with suppress(OSError):  # it has ended already
            self.mine.send(None)  # to close the line is not enough: helpers that were forked later hold its end too
        self.process.join(ALIVE)
        if self.process.is_alive():
            self.process.kill()
        self.mine.close()

    def _serve(self, line: Connection) -> None:
        """In the forked process: one core, no OpenMP threads (those of the parent are not there), no Ctrl-C."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.mine.close()
        torch.set_num_threads(1)
        self.team.model.train()
        while True:
            while not line.poll(ALIVE):
                if os.getppid() != self.parent:
                    return
            try:
                order = line.recv()
            except EOFError:
                return
            if order is None:
                return
            try:
                line.send(self._work(order))
            except Exception as error:
                line.send(error)

    def _work(self, order: Order) -> tuple[float, int, list[int | None]]:
        torch.manual_seed(order.seed + self.part)
        for weight in self.team.weights:
            weight.grad = None
        loss, count = self.team._part(self.team.makers(order)[self.part])
        kinds: list[int | None] = []
        for weight, numbers, rows in zip(self.team.weights, self.numbers, self.rows, strict=True):
            if weight.grad is None:
                kinds.append(None)
            elif weight.grad.is_sparse:
                grad = weight.grad.coalesce()
                kinds.append(grad._nnz())
                numbers[: grad._nnz()] = grad.values()
                rows[: grad._nnz()] = grad.indices()[0]
            else:
                kinds.append(-1)
                numbers.copy_(weight.grad)
        return loss, count, kinds


def _shared(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory that a forked process shares; none is used before it is written."""
    numbers = torch.Size(shape).numel()
    block = mmap.mmap(-1, max(numbers, 1) * dtype.itemsize)
    return torch.frombuffer(block, dtype=dtype)[:numbers].view(*shape)


def _sparse(rows: Tensor, numbers: Tensor, shape: torch.Size) -> Tensor:
    return torch.sparse_coo_tensor(rows[None], numbers, shape, check_invariants=False, is_coalesced=True)
