"""Items that a model does not know but whose features it does: a row of each to score, as `prism update` begins it.

The row of such an item is the mean row of the known items that share a value with it, in the columns that the model
looks at, or in all if it looks at none; and where the model has learned rows of values, what these add. Of the simple
experts it has what the item has that was taken least. No state depends on it: its events wait for the next model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from prism.recommend.data.items import WORDS, cell_values, item_column
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.model.experts.user_state import state_after
from prism.recommend.model.recommender import live_scores

if TYPE_CHECKING:
    from prism.recommend.recommender import Recommender

Row = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Placed:
    """More columns of the scores: item n of these has the code (items of the model) + n."""

    rows: Float[Tensor, "M D"]
    bias: Tensor | None
    """Of each: the mean of the known items'."""
    least: NDArray[np.float32] | None
    """[rows of the bank]: the experts' features of each; None: there are no experts."""

    def beside(self, scores: Float[Tensor, "N I"], features: Float[Tensor, "N D"]) -> Float[Tensor, "N I_and_M"]:
        """The model's scores of its own items and of these."""
        found = features @ self.rows.T
        return torch.cat([scores, found if self.bias is None else found + self.bias], 1)

    @torch.inference_mode()
    def scores(self, of: "Recommender", log: Log, queries: Queries) -> Float[Tensor, "Q I_and_M"]:
        """After any histories, one query of each: as for live users."""
        features = ModelScorer(of.model, of.context).features(log, queries)
        scores = self.beside(of.model.scores(features), features)
        if of.experts is None:
            return scores
        pairs = zip(log.offsets[queries.users].tolist(), queries.positions.tolist(), strict=True)
        states = [state_after(log.items[first:end], log.times[first:end]) for first, end in pairs]
        asked: list[int | None] = log.times[queries.positions].tolist()
        return live_scores(of.model, of.experts, scores, features, states, asked, self.least)


class Beside(NamedTuple):
    """Placed items, and which of them some users took."""

    placed: Placed
    taken: Sequence[Sequence[int]]
    """Their codes, for each user."""


class Places:
    """Where the items of each value stand, under one model."""

    def __init__(self, recommender: "Recommender"):
        model, log = recommender.model, recommender.log
        table = log.item_features
        self.columns = {} if table is None else dict(zip(table.columns, table.dtypes, strict=True))
        """Of the items' table, and what type each has."""
        # a baseline has no rows
        features = recommender.config.features or tuple(self.columns)
        self._features = () if recommender.baseline is not None else features
        self._codes: dict[str, int] = {}
        values, items = self._survey(log, model.items)
        own = model.embedding.weight.detach()[: model.items].float().cpu()
        found = torch.zeros(len(self._codes), own.shape[1]).index_add_(0, values, own[items])
        self._totals, self._counts = found.numpy(), np.bincount(values, minlength=len(self._codes))
        self._learned: Row | None = None
        if self._features and model.features is not None:
            self._learned = np.zeros_like(self._totals)
            rows = model.features.rows.weight.detach().float().cpu().numpy()
            for n, name in enumerate(model.features.of.names):
                self._learned[self._codes[name]] = rows[n]
        self._device, self._bias = recommender.device, None if model.bias is None else model.bias.detach().mean()
        self._least = None if recommender.experts is None else recommender.experts.tables.bank.min(1)

    def _survey(self, log: Log, items: int) -> tuple[Tensor, Tensor]:
        """(values, items): every value that an item has; fills `_codes`."""
        values, having = [], []
        for feature in self._features:
            column, _, kind = feature.partition(":")
            for item, cell in enumerate(item_column(log, column)[:items]):
                for value in cell_values(cell, kind == WORDS):
                    values.append(self._codes.setdefault(f"{feature}={value}", len(self._codes)))
                    having.append(item)
        return torch.tensor(values, dtype=torch.long), torch.tensor(having, dtype=torch.long)

    def row(self, cells: Mapping[str, Any]) -> Row | None:
        """Of an item with these cells in the items' table, its name among them; None: no known item is like it."""
        total, count = np.zeros(self._totals.shape[1], dtype=np.float32), 0
        learned = np.zeros_like(total)
        for feature in self._features:
            column, _, kind = feature.partition(":")
            named = (f"{feature}={value}" for value in cell_values(cells.get(column), kind == WORDS))
            shared = [code for code in map(self._codes.get, named) if code is not None]
            if shared:
                total += self._totals[shared].sum(0)
                count += int(self._counts[shared].sum())
                if self._learned is not None:
                    learned += self._learned[shared].mean(0)
        return (total / count + learned).astype(np.float32) if count else None

    def placed(self, rows: list[Row]) -> Placed | None:
        """Items with these rows; None: there are none."""
        if not rows:
            return None
        return Placed(rows=torch.from_numpy(np.stack(rows)).to(self._device), bias=self._bias, least=self._least)
