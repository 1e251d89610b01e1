"""Popularity, and the user's own items again: what needs no more than counting."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.config import Checked, Count
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.scores import Scores


@dataclass(frozen=True, kw_only=True)
class Popularity:
    """An item's score is its number of training events, the same for everyone."""

    days: float | None = None
    """Count only this many days before the last training event."""

    def fit(self, train: Log) -> "PopularityScorer":
        events = train.items
        if self.days is not None:
            events = events[train.times > train.times.max() - self.days * 86_400]
        return PopularityScorer(np.bincount(events, minlength=train.n_items).astype(np.float32))

    @property
    def last(self) -> int:
        """Of the history nothing counts; one event is the least that a live user keeps."""
        return 1

    def restored(self, arrays: dict[str, NDArray[Any]]) -> "PopularityScorer":
        return PopularityScorer(**arrays)


@dataclass(frozen=True)
class PopularityScorer:
    counts: Scores

    def __call__(self, log: Log, queries: Queries) -> Scores:
        return np.broadcast_to(self.counts, (len(queries), len(self.counts)))


@dataclass(frozen=True, kw_only=True)
class RepeatLast(Checked):
    """The user's own items, the latest first; all others tie at 0."""

    last: Count = 1000
    """Look back this many events."""

    def fit(self, train: Log) -> "RepeatLast":
        return self

    def restored(self, arrays: dict[str, NDArray[Any]]) -> "RepeatLast":
        return self

    def __call__(self, log: Log, queries: Queries) -> Scores:
        query, items, age = queries.histories(log, self.last)
        known = items < queries.candidates
        scores = np.zeros((len(queries), queries.candidates), dtype=np.float32)
        # oldest first: of an item taken twice the later write stays
        scores[query[known], items[known]] = 1 / (1 + age[known])
        return scores
