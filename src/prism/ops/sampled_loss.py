"""Log-likelihood of a target against drawn items: t_n − log(e^{t_n} + Σ_m e^{s_nm} / E_nm).

s_nm is the score of drawn item m, t_n the target's, E_nm how often m was expected among the drawn: dividing by it makes
the sum an unbiased estimate of Σ e^s over all items but the target, however they were drawn. A drawn item that is the
target itself is left out. One value per token, so that it can be one part of a mixture.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


def sampled_log_likelihood(
    x: Float[Tensor, "N D"],
    table: Float[Tensor, "I D"],
    targets: Int[Tensor, " N"],
    drawn: Int[Tensor, " M"],
    log_expected: Float[Tensor, "S M"],
    limits: Int[Tensor, " S_and_1"],
    *,
    bias: Float[Tensor, " I"] | None = None,
) -> Float[Tensor, " N"]:
    """log p(target) of each token, estimated; differentiable in `x`, `table` and `bias`.

    Args:
        x: Features, one row per token.
        table: One row per item.
        targets: The item that came, 0 ≤ target < I.
        drawn: Items that stand for all others, the same for every token; one that comes twice counts twice.
        log_expected: log E for each group of tokens; +∞ leaves a drawn item out for that group.
        limits: Tokens limits[g] … limits[g + 1] − 1 are group g.
        bias: Added to each item's score.
    """
    with torch.autocast(x.device.type, enabled=False):
        target_rows, drawn_rows = F.embedding(targets, table), F.embedding(drawn, table)
        offsets = (None, None) if bias is None else (bias[targets], bias[drawn])
        hidden = (targets, drawn, log_expected.to(table.dtype), limits)
        return _SampledLogLikelihood.apply(x.to(table.dtype), target_rows, drawn_rows, *offsets, *hidden)


class _SampledLogLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        target_rows: Tensor,
        drawn_rows: Tensor,
        target_bias: Tensor | None,
        drawn_bias: Tensor | None,
        targets: Tensor,
        drawn: Tensor,
        log_expected: Tensor,
        limits: Tensor,
    ) -> Tensor:
        score = (x * target_rows).sum(1, keepdim=True)
        if target_bias is not None:
            score += target_bias[:, None]
        p, own = x.new_empty(len(x), len(drawn)), torch.empty_like(score)
        found = torch.empty_like(score)
        for group, (a, b) in enumerate(pairwise(limits.tolist())):  # what a group's scores take fits the cache
            scores = torch.mm(x[a:b], drawn_rows.T, out=p[a:b]).sub_(log_expected[group])
            if drawn_bias is not None:
                scores += drawn_bias
            scores.masked_fill_(drawn == targets[a:b, None], -torch.inf)
            top = score[a:b] if not len(drawn) else torch.maximum(scores.amax(1, keepdim=True), score[a:b])
            own[a:b] = (score[a:b] - top).exp_()
            mass = scores.sub_(top).exp_().sum(1, keepdim=True) + own[a:b]
            found[a:b] = score[a:b] - top - mass.log()
            own[a:b] /= mass
            scores /= mass
        ctx.save_for_backward(x, target_rows, drawn_rows, p, own)
        ctx.biased = target_bias is not None
        return found[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, target_rows, drawn_rows, p, own = ctx.saved_tensors
        g = grad[:, None]
        missing = g * (1 - own)
        dx = torch.addcmul(missing * target_rows, g, p @ drawn_rows, value=-1)
        ddrawn = p.T @ (x * -g)
        biases = (missing[:, 0], -(p.T @ grad)) if ctx.biased else (None, None)
        return (dx, missing * x, ddrawn, *biases, None, None, None, None)
