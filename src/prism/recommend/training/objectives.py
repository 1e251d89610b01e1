"""Losses over a catalogue: exact softmax, sampled softmax with the logQ correction, binary cross-entropy."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from prism.config import at_least, one_of
from prism.ops.softmax_loss import softmax_loss

Loss = Literal["softmax", "sampled", "bce"]


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What is minimised."""

    loss: Loss = "softmax"
    """Exact softmax over all items; `sampled`: over the target and drawn items; `bce`: target against drawn ones."""
    negatives: int = 256
    """Items drawn: shared by a batch (sampled), or for each event (bce; the paper draws 1)."""

    def __post_init__(self) -> None:
        one_of("loss", self.loss, Loss)
        at_least("negatives", self.negatives, 1)


def objective(
    config: ObjectiveConfig,
    x: Float[Tensor, "N D"],
    table: Float[Tensor, "I D"],
    bias: Float[Tensor, " I"] | None,
    targets: Int[Tensor, " N"],
    popularity: Float[Tensor, " I"],
) -> Float[Tensor, ""]:
    """The sum of the configured loss over tokens; `popularity` is the items' share of training events."""
    if config.loss == "softmax":
        return softmax_loss(x, table, targets, bias=bias)
    if config.loss == "sampled":
        return sampled_softmax_loss(x, table, bias, targets, popularity, config.negatives)
    drawn = torch.randint(len(table), (len(targets), config.negatives), device=x.device)
    positive, negative = _scores(x, table, bias, targets[:, None]), _scores(x, table, bias, drawn)
    return -(F.logsigmoid(positive).sum() + F.logsigmoid(-negative).sum() / config.negatives)


def sampled_softmax_loss(
    x: Float[Tensor, "N D"],
    table: Float[Tensor, "I D"],
    bias: Float[Tensor, " I"] | None,
    targets: Int[Tensor, " N"],
    popularity: Float[Tensor, " I"],
    negatives: int,
) -> Float[Tensor, ""]:
    """Softmax over the target and items drawn by popularity, each drawn one's score less log(expected draws).

    The correction makes Σ over drawn items an unbiased estimate of Σ over all others.
    """
    # items never taken in training are drawn now and then too, or nothing would push their scores down
    chance = 0.9 * popularity + 0.1 / len(popularity)
    drawn = torch.multinomial(chance, negatives, replacement=True)
    scores = x @ table[drawn].T - (chance[drawn] * negatives).log()
    if bias is not None:
        scores = scores + bias[drawn]
    scores = scores.masked_fill(drawn[None] == targets[:, None], -torch.inf)
    target = _scores(x, table, bias, targets[:, None])
    return (torch.cat([target, scores], 1).logsumexp(1) - target[:, 0]).sum()


def _scores(x: Tensor, table: Tensor, bias: Tensor | None, items: Tensor) -> Tensor:
    """[N, n]: the scores of each token's own items."""
    scores = torch.einsum("nd,nkd->nk", x, table[items])
    return scores if bias is None else scores + bias[items]
