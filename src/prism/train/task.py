"""What the loop asks of a task: batches by epoch, a loss that is a sum, metrics and the one that decides."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Task(Protocol):
    """Data, loss and metrics of one kind of training. Nothing in it changes while it trains."""

    @property
    def monitor(self) -> str | None:
        """The metric of `evaluate` that picks the best epoch and stops early; None: the last epoch counts."""

    @property
    def higher_is_better(self) -> bool:
        """Which way `monitor` improves."""

    @property
    def start(self) -> str:
        """What the model is before the first step, if that is worth an evaluation; empty: it is not."""

    def batches(self, epoch: int) -> Sequence[Any]:
        """The batches of an epoch, indexed from 0 and made when asked for.

        The same for the same (task, epoch), always: a resumed run continues inside an epoch. A batch is a tensor,
        or named tuples and tuples of tensors. It is made by a thread beside the training step: nothing random in it may
        come from torch's own generator.
        """

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """(sum of the loss over the batch's tokens, their number). Call `model` itself: it may be distributed.

        Random draws come from torch's generator, which the loop seeds for each step.
        """

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on validation data; called on one process with the bare model."""

    def describe(self, batch: Any) -> str:
        """What a batch holds, in a few words, for the error of a loss that is not finite."""


@runtime_checkable
class Apart(Protocol):
    """A task whose validation can be divided between processes that have the same weights."""

    def evaluate_part(self, model: nn.Module, number: int, of: int) -> tuple[dict[str, float], int]:
        """Sums of the metrics over part `number` of so many, and over how much they are; nothing: ({}, 0)."""
