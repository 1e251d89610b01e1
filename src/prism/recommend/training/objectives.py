"""Losses over a catalogue: exact softmax and binary cross-entropy; the sampled softmax is in `negatives.py`."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from prism.config import Checked, Count, Natural, Share
from prism.errors import InputError
from prism.ops.additions import Additions
from prism.ops.softmax_loss import softmax_loss

Loss = Literal["softmax", "sampled", "bce"]


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Checked):
    """What is minimised."""

    loss: Loss | None = "softmax"
    """Exact softmax over all items; `sampled`: over the target and drawn items, for large catalogues: a step then costs
    the same whatever their number; `bce`: target against drawn ones."""
    negatives: Count | None = None
    """Items drawn: each once and shared by a batch (sampled; None: 2048), or for each event (bce; None: 256, the paper
    draws 1)."""
    uniform: float = 0.5
    """How much the chance to be drawn is uniform (sampled): 1 wholly, near 0 by popularity."""
    focus: Share | None = None
    """q of (1 − p^q) / q, which is minimised in place of −log p: an event then counts by p^q, and those that nobody
    could have foreseen count less. 0: −log p; None: by rule with experts, 0 without."""
    shared: Natural = 256
    """Targets of the batch that stand as drawn items for the other sequences in it (sampled)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.uniform <= 1:
            raise InputError(
                f"uniform must be in (0, 1], got {self.uniform!r}: what is never drawn is never pushed down"
            )

    @property
    def draws(self) -> int:
        """As many as `negatives` says, or as suit the loss."""
        return self.negatives or (2048 if self.loss == "sampled" else 256)


def objective(
    config: ObjectiveConfig,
    x: Float[Tensor, "N D"],
    table: Float[Tensor, "I D"],
    bias: Float[Tensor, " I"] | None,
    targets: Int[Tensor, " N"],
    added: Additions | None = None,
    weights: Float[Tensor, "N K"] | None = None,
) -> Float[Tensor, ""]:
    """The sum over tokens of the exact softmax, with what experts add to its scores, or of the binary cross-entropy."""
    if config.loss == "softmax":
        return softmax_loss(x, table, targets, bias=bias, added=added, weights=weights, focus=config.focus or 0.0)
    drawn = torch.randint(len(table), (len(targets), config.draws), device=x.device)
    positive, negative = _scores(x, table, bias, targets[:, None]), _scores(x, table, bias, drawn)
    return -(F.logsigmoid(positive).sum() + F.logsigmoid(-negative).sum() / config.draws)


def _scores(x: Tensor, table: Tensor, bias: Tensor | None, items: Tensor) -> Tensor:
    """[N, n]: the scores of each token's own items."""
    scores = torch.einsum("nd,nkd->nk", x, table[items])
    return scores if bias is None else scores + bias[items]
