"""Full-ranking evaluation of any scorer, in blocks of queries: ranks, metrics, means with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from prism.config import at_least
from prism.errors import InputError
from prism.recommend.data.log import Ints, Log
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.intervals import Average, Estimate, estimates
from prism.recommend.evaluation.metrics import CUTOFFS, Floats, Ranks, concatenate, metric_values, rank_targets


@runtime_checkable
class Scorer(Protocol):
    """Anything that scores all candidates after each query's history: a model or a baseline."""

    def __call__(self, log: Log, queries: Queries) -> Any:
        """Scores [len(queries), queries.candidates], numpy or torch; queries come by user and time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """What one scorer got: a value per query and metric, and their means with intervals."""

    ranks: Ranks
    users: Ints
    """[queries]: the user code of each."""
    history_lengths: Ints
    """[queries]: events before the target, to look at performance by length."""
    values: dict[str, Floats]
    means: dict[Average, dict[str, Estimate]]
    cold: int
    """Events left out because their item was no candidate."""

    def __getitem__(self, metric: str) -> float:
        """The mean over events, e.g. `evaluation["ndcg@10"]`."""
        return self.means["event"][metric].mean


def evaluate(
    scorer: Scorer,
    log: Log,
    queries: Queries,
    *,
    cutoffs: Sequence[int] = CUTOFFS,
    block: int | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Ranks every target among all candidates; `block` queries are scored at once (default: by memory)."""
    if not len(queries):
        raise InputError("there are no queries to evaluate: choose another split")
    if block is None:
        block = max(1, min(1024, 16_000_000 // queries.candidates))
    at_least("block", block, 1)
    parts = []
    for part in queries.blocks(block):
        who = [f"of user {user!r}" for user in log.user_ids[part.users].tolist()]
        scores = scorer(log, part)
        if tuple(scores.shape) != (len(part), part.candidates):
            raise InputError(f"a scorer gave {list(scores.shape)}, expected [{len(part)}, {part.candidates}]")
        parts.append(rank_targets(scores, part.targets(log), part.removed(log), queries=who))
    ranks = concatenate(parts)
    values = metric_values(ranks, cutoffs)
    return Evaluation(
        ranks=ranks,
        users=queries.users,
        history_lengths=queries.positions - log.offsets[queries.users],
        values=values,
        means=estimates(values, queries.users, samples=samples, seed=seed),
        cold=queries.cold,
    )
