"""Next-token prediction on packed tokens, as the training loop takes it: a budget of tokens in equal rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prism.config import Checked, Count
from prism.errors import InputError
from prism.lm.data.shards import Shards
from prism.lm.sizes import Sizes
from prism.ops.context.segment import share_of


@dataclass(frozen=True, kw_only=True)
class LanguageTask(Checked):
    """Windows of the training tokens in a random order, all of them before any comes again."""

    train: Shards
    valid: Shards
    tokens: Count
    """To train on in all rounds together."""
    rounds: Count
    """The loop's epochs."""
    length: Count = 512
    """Tokens of a window."""
    batch: Count = 8
    """Windows of a batch."""
    valid_windows: Count = 256
    """Windows of the validation tokens at most."""
    seed: int = 0
    together: int = 1
    """Processes that share every sequence: each counts its own tokens."""

    monitor = "perplexity"
    higher_is_better = False
    start = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, shards in (("training", self.train), ("validation", self.valid)):
            if not shards.windows(self.length):
                raise InputError(
                    f"the {name} text has {shards.tokens:,} tokens, less than one window of length {self.length}: "
                    "give more text or a smaller length"
                )
        if self.tokens < self.rounds * self.batch * self.length:
            least = self.rounds * self.batch * self.length
            raise InputError(f"tokens must be at least {least:,} for a batch in each epoch, got {self.tokens:,}")

    @classmethod
    def of(cls, sizes: Sizes, **more: Any) -> "LanguageTask":
        return cls(tokens=sizes.tokens, length=sizes.length, batch=sizes.batch, **more)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        """The batches of one round: [batch, length + 1], the last token a target only."""
        count = self.tokens // (self.rounds * self.batch * self.length)
        return Batches(self, epoch * count * self.batch, count)

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        """The sum over tokens, and how many there are."""
        first, end = share_of(batch[:, 1:].numel(), self.together, batch.device.type)
        return model(batch), end - first

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Perplexity per token and bits per byte of evenly spread validation windows, none seen twice."""
        count = self.valid.windows(self.length)
        chosen = np.unique(np.linspace(0, count - 1, min(count, self.valid_windows)).astype(int))
        device = next(model.parameters()).device
        total = 0.0
        for start in range(0, len(chosen), self.batch):
            rows = [self.valid.window(int(n), self.length) for n in chosen[start : start + self.batch]]
            total += float(model(torch.from_numpy(np.stack(rows)).to(device)))
        mean = total / (len(chosen) * self.length)
        bytes_per_token = sum(shard.bytes for shard in self.valid.shards) / self.valid.tokens
        return {"perplexity": exp(min(mean, 700)), "bits_per_byte": mean / log(2) / bytes_per_token, "loss": mean}

    def describe(self, batch: Tensor) -> str:
        """The first tokens of a batch."""
        return f"windows that start with tokens {batch[:4, :4].tolist()}"


@dataclass(frozen=True)
class Batches(Sequence[Tensor]):
    """A round's batches, in order."""

    task: LanguageTask
    start: int
    """Windows before this round."""
    size: int
    """Batches of the round."""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, n: Any) -> Any:
        if not 0 <= n < self.size:
            raise IndexError(n)
        task = self.task
        first = self.start + n * task.batch
        rows = [self._window(number) for number in range(first, first + task.batch)]
        return torch.from_numpy(np.stack(rows))

    def _window(self, number: int) -> Any:
        """The window that comes at this place of the run: each pass over the text has an order of its own."""
        task = self.task
        count = task.train.windows(task.length)
        passes, place = divmod(number, count)
        return task.train.window(int(_order(task.seed, passes, count)[place]), task.length)


@lru_cache(maxsize=2)  # two: a batch may lie across the end of a pass
def _order(seed: int, passes: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, passes)).permutation(count)
