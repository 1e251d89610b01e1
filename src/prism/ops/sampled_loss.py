"""Log-likelihood of a target against drawn items: t_n − log(e^{t_n} + Σ_m e^{s_nm} / E_nm).

s_nm is the score of drawn item m, t_n the target's, E_nm how often m was expected among the drawn: dividing by it makes
the sum an unbiased estimate of Σ e^s over all items but the target, however they were drawn. A drawn item that is the
target itself is left out. One value per token, so that it can be one part of a mixture.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


class Drawn(NamedTuple):
    """Items that stand for all others."""

    items: Int[Tensor, " M"]
    """The same for every token; one that comes twice counts twice."""
    log_expected: Float[Tensor, "S M"]
    """log E for each group of tokens; +∞ leaves a drawn item out for that group."""
    limits: Int[Tensor, " S_and_1"]
    """Tokens limits[g] … limits[g + 1] − 1 are group g."""


class Extras(NamedTuple):
    """What is added to scores, of the target, of each token's named items and of the drawn ones."""

    named: Int[Tensor, "N S"]
    """Items of each token that are counted whether drawn or not; -1: fewer."""
    of_target: Float[Tensor, " N"]
    of_named: Float[Tensor, "N S"]
    of_drawn: Float[Tensor, "N M"]


def sampled_log_likelihood(
    x: Float[Tensor, "N D"],
    table: Float[Tensor, "I D"],
    targets: Int[Tensor, " N"],
    drawn: Drawn,
    extras: Extras | None = None,
    *,
    bias: Float[Tensor, " I"] | None = None,
) -> Float[Tensor, " N"]:
    """log p(target) of each token, estimated; differentiable in everything that is a number.

    Args:
        x: Features, one row per token.
        table: One row per item.
        targets: The item that came, 0 ≤ target < I.
        drawn: Items that stand for all others.
        extras: Added to scores, and each token's named items, which are counted exactly:
            t − log(e^t + Σ_{named} e^s + Σ_{drawn, not named} e^s / E).
        bias: Added to each item's score.
    """
    with torch.autocast(x.device.type, enabled=False):
        if extras is not None:
            return _with_extras(x.to(table.dtype), table, targets, drawn, extras, bias)
        target_rows, drawn_rows = F.embedding(targets, table), F.embedding(drawn.items, table)
        offsets = (None, None) if bias is None else (bias[targets], bias[drawn.items])
        hidden = (targets, drawn.items, drawn.log_expected.to(table.dtype), drawn.limits)
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


def _with_extras(
    x: Tensor, table: Tensor, targets: Tensor, drawn: Drawn, extras: Extras, bias: Tensor | None
) -> Float[Tensor, " N"]:
    offsets = table.new_zeros(len(table)) if bias is None else bias
    named = extras.named.clamp(min=0)
    target = (x * F.embedding(targets, table)).sum(1) + offsets[targets] + extras.of_target
    exact = torch.einsum("nd,nsd->ns", x, F.embedding(named, table)) + offsets[named] + extras.of_named
    exact = exact.masked_fill((extras.named < 0) | (named == targets[:, None]), -torch.inf)
    rest = x @ F.embedding(drawn.items, table).T + offsets[drawn.items] + extras.of_drawn
    rest = rest - torch.repeat_interleave(drawn.log_expected.to(table.dtype), drawn.limits.diff(), 0)
    own = torch.cat([extras.named, targets[:, None]], 1)
    rest = rest.masked_fill(_counted(own, drawn.items, len(table)), -torch.inf)
    return target - torch.cat([target[:, None], exact, rest], 1).logsumexp(1)


def _counted(items: Int[Tensor, "N S"], drawn: Int[Tensor, " M"], count: int) -> Bool[Tensor, "N M"]:
    """Which of the drawn items are among each token's own (-1: none), of a table of `count`."""
    different, place = drawn.unique(return_inverse=True)
    column = drawn.new_full((count + 1,), len(different))  # the last one, of no item, serves all that were not drawn
    column[different] = torch.arange(len(different), device=drawn.device)
    found = torch.zeros(len(items), len(different) + 1, dtype=torch.bool, device=drawn.device)
    found.scatter_(1, column[items], True)  # -1 is the last
    return found[:, place]
