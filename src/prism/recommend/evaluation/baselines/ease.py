"""EASE (Steck, 2019): scores = x B, the ridge regression of items on one another, none on itself, in closed form."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prism.config import Checked, Count, Positive
from prism.errors import InputError
from prism.ops.cpu import threads
from prism.ops.cpu.compiling import loop
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.scores import Scores
from prism.recommend.model.experts.regression import regressed


@dataclass(frozen=True, kw_only=True)
class Ease(Checked):
    """A user's distinct items, each as much as it tells about the others, in a linear map that is solved for once."""

    ridge: Positive = 500.0
    """λ: added to each item's number of users, without which the system has no one solution. More trusts rare items
    less."""
    half_life: Positive | None = 1.0
    """Events after which an item of the history weighs half; None: all weigh the same, as published."""
    last: Count | None = 30
    """History events that count; None: all, as published."""
    most_items: Count = 8_000
    """A larger catalogue is refused: memory grows with the square of the items, time with the cube."""

    def refusal(self, train: Log) -> str | None:
        """Why it is left out on this log, or None."""
        if train.n_items <= self.most_items:
            return None
        gigabytes = 12 * train.n_items**2 / 2**30
        return f"{train.n_items:,} items are more than {self.most_items:,}: it would take {gigabytes:,.0f} GB"

    def fit(self, train: Log) -> "EaseScorer":
        refused = self.refusal(train)
        if refused:
            raise InputError(f"ease cannot be fitted to {train.name}: {refused}; raise most_items, or leave it out")
        return EaseScorer(regressed(_gram(train), self.ridge), self)

    def restored(self, arrays: dict[str, NDArray[Any]]) -> "EaseScorer":
        return EaseScorer(torch.from_numpy(arrays["weights"]), self)


@dataclass(frozen=True, eq=False)
class EaseScorer:
    weights: Tensor
    """[items, items]: row i is what having item i says about each other one."""
    config: Ease = field(default_factory=Ease)

    def __call__(self, log: Log, queries: Queries) -> Scores:
        query, items, age = queries.histories(log, self.config.last)
        # backwards, so that of an item taken twice the later event is found first
        key = (query * np.int64(queries.candidates + 1) + np.minimum(items, queries.candidates))[::-1]
        _, from_end = np.unique(key, return_index=True)
        event = np.sort(len(key) - 1 - from_end)
        event = event[items[event] < queries.candidates]
        half_life = self.config.half_life
        weight = np.ones(len(event)) if half_life is None else 0.5 ** (age[event] / half_life)
        begins = np.searchsorted(query[event], np.arange(len(queries) + 1))
        scores = np.zeros((len(queries), queries.candidates), dtype=np.float32)
        rows, factors, table = items[event], weight.astype(np.float32), self.weights.numpy()
        threads.run(
            lambda first, last: _add_rows(scores, first, last, begins, rows, factors, table),
            np.diff(begins) * queries.candidates,
        )
        return scores


def _gram(train: Log, block: int = 2048) -> Tensor:
    """[items, items]: users with both, a block of users at a time."""
    total = torch.zeros(train.n_items, train.n_items)
    for first in range(0, train.n_users, block):
        last = min(first + block, train.n_users)
        events = slice(train.offsets[first], train.offsets[last])
        taken = torch.zeros(last - first, train.n_items)
        users = np.repeat(np.arange(last - first), train.lengths[first:last])
        taken[torch.from_numpy(users), torch.from_numpy(train.items[events]).long()] = 1.0
        total.addmm_(taken.T, taken)
    return total


@loop
def _add_rows(scores, first, last, begins, rows, factors, table):  # type: ignore[no-untyped-def]
    """scores[q] = Σ factors[a] · table[rows[a]] over a in begins[q] … begins[q + 1] − 1, for first ≤ q < last."""
    for q in range(first, last):
        for a in range(begins[q], begins[q + 1]):
            for j in range(scores.shape[1]):
                scores[q, j] += factors[a] * table[rows[a], j]
