"""How to train: AdamW, warm-up and cosine, clipping, early stopping; the same for every task."""

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

from prism.config import Checked, Count, Fraction, Natural, NotNegative, Positive, Seed, Share, at_least
from prism.errors import InputError

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Checked):
    """One training run."""

    epochs: Natural = 20
    """Passes over the training data, at most."""
    lr: NotNegative = 2e-3
    """The learning rate after warm-up."""
    warmup: Fraction = 0.05
    """Share of the run in which the learning rate rises from 0."""
    final_lr: Share = 0.0
    """Where the cosine ends, as a share of `lr`."""
    weight_decay: NotNegative = 0.01
    """AdamW's, on matrices only: not on embeddings, norms and biases."""
    beta2: Fraction = 0.98
    """AdamW's decay of squared gradients."""
    clip: Positive = 1.0
    """Gradients longer than this are shortened to it."""
    accumulate: Count = 1
    """Batches per update of the weights."""
    patience: Count = 5
    """Training stops after this many evaluations without a better one."""
    evaluate_every: Count = 1
    """Epochs between evaluations; the last is always evaluated."""
    precision: Precision = "float32"
    """Precision of matrix products; weights and sums stay in float32. bfloat16 is faster on GPUs, not on most CPUs."""
    seed: Seed = 0
    """Seed of the first weights, the order of batches and dropout."""
    save_seconds: NotNegative = 60.0
    """Seconds between checkpoints; also one at every evaluation and at Ctrl-C."""
    log_steps: Count = 50
    """Updates between lines in the log."""
    tensorboard: bool = False
    """Also write TensorBoard's event files (pip install 'prism-sequence[tensorboard]')."""

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
