"""How to train: AdamW, warm-up and cosine, clipping, early stopping; the same for every task."""

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

from prism.config import at_least, fraction, one_of
from prism.errors import InputError

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run."""

    epochs: int = 20
    """Passes over the training data, at most."""
    lr: float = 2e-3
    """The learning rate after warm-up."""
    warmup: float = 0.05
    """Share of the run in which the learning rate rises from 0."""
    final_lr: float = 0.0
    """Where the cosine ends, as a share of `lr`."""
    weight_decay: float = 0.01
    """AdamW's, on matrices only: not on embeddings, norms and biases."""
    beta2: float = 0.98
    """AdamW's decay of squared gradients."""
    clip: float = 1.0
    """Gradients longer than this are shortened to it."""
    accumulate: int = 1
    """Batches per update of the weights."""
    patience: int = 5
    """Training stops after this many evaluations without a better one."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last is always evaluated."""
    precision: Precision = "float32"
    """Precision of matrix products; weights and sums stay in float32. bfloat16 is faster on GPUs, not on most CPUs."""
    seed: int = 0
    """Seed of the first weights, the order of batches and dropout."""
    save_seconds: float = 60.0
    """Seconds between checkpoints; also one at every evaluation and at Ctrl-C."""
    log_steps: int = 50
    """Updates between lines in the log."""
    tensorboard: bool = False
    """Also write TensorBoard's event files (pip install 'prism-sequence[tensorboard]')."""

    def __post_init__(self) -> None:
        for name in ("accumulate", "patience", "evaluate_every", "log_steps"):
            at_least(name, getattr(self, name), 1)
        for name in ("epochs", "lr", "weight_decay", "seed", "save_seconds"):
            at_least(name, getattr(self, name), 0)
        if not self.clip > 0:
            raise InputError(f"clip must be above 0, got {self.clip!r}")
        fraction("warmup", self.warmup)
        fraction("beta2", self.beta2)
        if not 0 <= self.final_lr <= 1:
            raise InputError(f"final_lr must be in [0, 1], got {self.final_lr!r}")
        one_of("precision", self.precision, Precision)

    def check_set(self) -> None:
        """Refuses to train with `epochs` or `lr` at 0: a task that has rules for them sets them before."""
        at_least("epochs", self.epochs, 1)
        if not self.lr > 0:
            raise InputError(f"lr must be above 0, got {self.lr!r}")

    def rate(self, done: float) -> float:
        """The learning rate where a share `done` of the run is behind: a function, so that nothing needs saving."""
        if done < self.warmup:
            return self.lr * done / self.warmup
        wave = (1 + cos(pi * (done - self.warmup) / (1 - self.warmup))) / 2
        return self.lr * (self.final_lr + (1 - self.final_lr) * wave)
