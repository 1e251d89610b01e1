"""Item-kNN: what is near the history's items, by users in common."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.config import Checked, Count, Positive
from prism.recommend.data.log import Codes, Ints, Log
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.baselines.neighbours import nearest, spread
from prism.recommend.evaluation.scores import Scores


@dataclass(frozen=True, kw_only=True)
class ItemKNN(Checked):
    """Score of i: the sum over the history's items j of cos(i, j), where i is among the nearest of j.

    cos(i, j) = users with both / sqrt(users with i · users with j).
    """

    neighbours: Count = 100
    """Items kept per item."""
    last: Count = 50
    """History events that count."""
    half_life: Positive | None = 1.0
    """Events after which an item of the history weighs half; None: all weigh the same. 1 did best in validation."""
    longest: Count = 1000
    """Of a user's distinct items the latest this many make pairs: the work grows with the square."""

    def fit(self, train: Log) -> "ItemKNNScorer":
        offsets, items = _distinct(train, self.longest)
        users = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        by_item = np.argsort(items, kind="stable")
        counts = np.bincount(items, minlength=train.n_items)
        starts = np.concatenate([[0], np.cumsum(counts)])
        k = min(self.neighbours, max(train.n_items - 1, 1))
        near, similarity = nearest(offsets, items, starts, users[by_item], k)
        return ItemKNNScorer(near, similarity, self)

    def restored(self, arrays: dict[str, NDArray[Any]]) -> "ItemKNNScorer":
        return ItemKNNScorer(**arrays, config=self)


@dataclass(frozen=True)
class ItemKNNScorer:
    near: Codes
    """[items, k]: the nearest items; -1 where there are fewer."""
    similarity: Scores
    config: ItemKNN = field(default_factory=ItemKNN)

    def __call__(self, log: Log, queries: Queries) -> Scores:
        query, items, age = queries.histories(log, self.config.last)
        known = items < queries.candidates
        half_life = self.config.half_life
        weight = np.ones(len(age)) if half_life is None else 0.5 ** (age / half_life)
        scores = np.zeros((len(queries), queries.candidates), dtype=np.float32)
        spread(scores, query[known], items[known], weight[known], self.near, self.similarity)
        return scores


def _distinct(train: Log, longest: int) -> tuple[Ints, Codes]:
    """(offsets, items): each user's distinct items, the latest `longest` of them."""
    key = train.users * np.int64(train.n_items) + train.items
    _, from_end = np.unique(key[::-1], return_index=True)
    latest = np.sort(len(key) - 1 - from_end)  # the last event of each (user, item)
    users = train.users[latest]
    counts = np.bincount(users, minlength=train.n_users)
    rank_from_end = np.repeat(np.cumsum(counts), counts) - np.arange(len(latest))
    latest = latest[rank_from_end <= longest]
    return np.concatenate([[0], np.cumsum(np.minimum(counts, longest))]), train.items[latest]
