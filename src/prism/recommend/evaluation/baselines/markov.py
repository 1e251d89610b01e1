"""First-order Markov: p(j | i) = (count(i → j) + s · p(j)) / (count(i) + s), which backs off to popularity p."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.config import Checked, Positive
from prism.recommend.data.log import Codes, Ints, Log, concatenated_ranges
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.scores import Scores


@dataclass(frozen=True, kw_only=True)
class Markov(Checked):
    """The chance of each item after the latest one, counted in training, smoothed by how popular items are."""

    smoothing: Positive = 1.0
    """Events by popularity that are added to what followed each item: unseen pairs need a chance too."""

    def fit(self, train: Log) -> "MarkovScorer":
        follows = np.append(train.users[1:] == train.users[:-1], False) if train.n_events else np.zeros(0, bool)
        at = np.flatnonzero(follows)
        n = np.int64(train.n_items)
        pairs, counts = np.unique(train.items[at] * n + train.items[at + 1], return_counts=True)
        popularity = train.item_counts() / max(train.n_events, 1)
        before = pairs // n
        starts = np.searchsorted(before, np.arange(train.n_items + 1))
        return MarkovScorer(
            starts=starts,
            after=(pairs % n).astype(np.int32),
            counts=counts.astype(np.float32),
            popularity=popularity.astype(np.float32),
            smoothing=self.smoothing,
        )

    @property
    def last(self) -> int:
        """The latest event alone counts."""
        return 1

    def restored(self, arrays: dict[str, NDArray[Any]]) -> "MarkovScorer":
        return MarkovScorer(**arrays, smoothing=self.smoothing)


@dataclass(frozen=True, kw_only=True, eq=False)
class MarkovScorer:
    starts: Ints
    """[items + 1]: where each item's followers begin and end in `after`."""
    after: Codes
    counts: Scores
    popularity: Scores
    smoothing: float

    @cached_property
    def _sums(self) -> NDArray[np.float64]:
        """All counts before each place: a live user must not wait for the sum over all pairs."""
        return np.concatenate([[0.0], np.cumsum(self.counts, dtype=np.float64)])

    def __call__(self, log: Log, queries: Queries) -> Scores:
        latest = _latest_known(log, queries)
        asked = np.flatnonzero(latest >= 0)
        begin, end = self.starts[latest[asked]], self.starts[latest[asked] + 1]
        place = concatenated_ranges(begin, end - begin)
        total = np.zeros(len(queries), dtype=np.float32)
        total[asked] = self._sums[end] - self._sums[begin]
        scores: Scores = (self.smoothing / (total + self.smoothing))[:, None] * self.popularity
        query = np.repeat(asked, end - begin)
        scores[query, self.after[place]] += self.counts[place] / (total[query] + self.smoothing)
        return scores


def _latest_known(log: Log, queries: Queries) -> Codes:
    """[queries]: the latest item of each history that training knew; -1 where there is none."""
    query, items, _ = queries.histories(log)
    known = items < queries.candidates
    latest = np.full(len(queries), -1, dtype=np.int32)
    latest[query[known]] = items[known]  # oldest first: the last write stays
    return latest
