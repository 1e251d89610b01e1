"""Where the target stands among all candidates: Hit, NDCG, MRR and AUC, exact expectations under ties.

A target with `above` better candidates and `tied` equal ones (itself included), ties being broken by
chance, stands at each rank above + 1 … above + tied with equal probability; a metric is the mean over them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.config import at_least
from prism.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
CUTOFFS = (10, 50, 200)
# Those of the paper's tables.
PAPER_CUTOFFS = (100, 200, 500)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranks:
    """Per query: candidates above the target, candidates tied with it (itself included), all candidates."""

    above: Ints
    tied: Ints
    candidates: Ints

    def __len__(self) -> int:
        return len(self.above)

    @property
    def expected(self) -> Floats:
        """The expected rank, 1 the best."""
        return self.above + (self.tied + 1) / 2


def rank_targets(
    scores: Any,
    targets: NDArray[Any],
    removed: tuple[Ints, Ints] | None = None,
    *,
    queries: Sequence[Any] | None = None,
) -> Ranks:
    """Ranks of `targets` [Q] in `scores` [Q, items] (numpy or torch), without `removed` pairs (query, item).

    Pairs must be distinct. `queries` names the rows in errors. Scores are not changed, and not copied.
    """
    scores = _as_numpy(scores)
    if scores.ndim != 2 or len(scores) != len(targets):
        raise InputError(f"scores must be [{len(targets)}, items], got {list(scores.shape)}")
    rows = np.arange(len(targets))
    target = scores[rows, targets]
    above = (scores > target[:, None]).sum(1)
    tied = (scores == target[:, None]).sum(1)
    wrong = (~np.isfinite(scores)).sum(1)
    total = np.full(len(targets), scores.shape[1])
    if removed is not None:
        row, item = removed
        if (item == targets[row]).any():
            raise InputError("a target is among the removed items: it has no rank; leave such queries out")
        gone = scores[row, item]
        for count, hit in (
            (above, gone > target[row]),
            (tied, gone == target[row]),
            (wrong, ~np.isfinite(gone)),
            (total, np.ones(len(row), dtype=bool)),
        ):
            count -= np.bincount(row[hit], minlength=len(rows))
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        who = first if queries is None else queries[first]
        raise InputError(f"query {who}: {wrong[first]} of {total[first]} scores are not finite; has it diverged?")
    return Ranks(above=above, tied=tied, candidates=total)


def concatenate(parts: Sequence[Ranks]) -> Ranks:
    """The ranks of several blocks as one."""
    names = ("above", "tied", "candidates")
    return Ranks(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def metric_values(ranks: Ranks, cutoffs: Sequence[int] = CUTOFFS) -> dict[str, Floats]:
    """One value per query of each hit@K, ndcg@K, of mrr and auc: expectations over random tie-breaking."""
    for cutoff in cutoffs:
        at_least("cutoff", cutoff, 1)
    last = ranks.above + ranks.tied
    position = np.arange(1, int(last.max(initial=0)) + 1)
    gain = np.append(0.0, np.cumsum(1 / np.log2(position + 1)))  # gain[r]: of ranks 1 … r together
    values = {f"hit@{k}": np.clip(k - ranks.above, 0, ranks.tied) / ranks.tied for k in cutoffs}
    for k in cutoffs:
        values[f"ndcg@{k}"] = _mean_gain(gain, np.minimum(ranks.above, k), np.minimum(last, k), ranks.tied)
    values["mrr"] = _mean_gain(np.append(0.0, np.cumsum(1 / position)), ranks.above, last, ranks.tied)
    others = ranks.candidates - 1
    below = ranks.candidates - ranks.expected  # tied others count half
    values["auc"] = np.where(others > 0, below / np.maximum(others, 1), 0.5)
    return values


def _mean_gain(total: Floats, first: Ints, last: Ints, tied: Ints) -> Floats:
    """The mean over the tied ranks of a gain given by its running sum."""
    mean: Floats = (total[last] - total[first]) / tied
    return mean


def _as_numpy(scores: Any) -> NDArray[Any]:
    """numpy as it is; a torch tensor from any device, half precisions widened, which loses nothing."""
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu()
        return np.asarray(scores.float() if scores.element_size() < 4 else scores)
    return np.asarray(scores)
