"""Items that a model does not know but whose features it does: how they are scored until it has learned them.

Such an item is as likely as the known items are in the mean that share a value with it, without those that the user has
taken: score = log mean e^{score of each}, an item counting as often as it shares a value, in the columns that the model
looks at, or in all if it looks at none. What is near it is told by a row, begun as `prism update` begins it. No state
depends on it: its events wait for the next model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from prism.recommend.data.items import WORDS, cell_values, item_column
from prism.recommend.data.log import Ints, Log
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.ranking import Scorer
from prism.recommend.model.experts import Floats
from prism.recommend.trained import Trained


class Place(NamedTuple):
    """Where one item belongs."""

    row: Floats
    """Of the item table: the mean row of like items, and what the rows add that the model has learned of values."""
    values: tuple[int, ...]
    """Its values that known items have."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sharing:
    """The known items that have each value: of value v, items[starts[v]:starts[v + 1]]."""

    items: Ints
    starts: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Placed:
    """More columns of the scores: item n of these has the code (items of the model) + n."""

    rows: Float[Tensor, "M D"]
    sharing: Sharing
    values: Ints
    """Of item n: values[starts[n]:starts[n + 1]]."""
    starts: Ints

    def beside(self, scores: Float[Tensor, "N I"], taken: Sequence[NDArray[Any]]) -> Float[Tensor, "N I_and_M"]:
        """The scores of the model's items and of these, where users have taken known items: [N] arrays of codes."""
        known = scores.cpu().numpy()
        more = np.stack([self._shared(row, codes) for row, codes in zip(known, taken, strict=True)])
        return torch.from_numpy(np.concatenate([known, more], 1))

    def _shared(self, scores: Floats, taken: NDArray[Any]) -> Floats:
        """[M]: after one history."""
        free = np.ones_like(scores)
        free[taken] = 0
        top = scores.max()
        totals, counts = (
            np.add.reduceat(np.add.reduceat(part[self.sharing.items], self.sharing.starts)[self.values], self.starts)
            for part in (np.exp(scores - top) * free, free)
        )
        # all like items taken, or so unlikely that nothing is left of them: as the least of all
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.log(totals / counts) + top
        return np.where(np.isfinite(found), found, scores.min())  # type: ignore[no-any-return]

    def scores(self, scorer: Scorer, log: Log, queries: Queries) -> Float[Tensor, "Q I_and_M"]:
        """The same after any histories, by what scores the model's items."""
        pairs = zip(log.offsets[queries.users].tolist(), queries.positions.tolist(), strict=True)
        return self.beside(scorer(log, queries), [log.items[first:end] for first, end in pairs])


class Beside(NamedTuple):
    """Placed items, and which of them some users took."""

    placed: Placed
    taken: Sequence[Sequence[int]]
    """Their codes, for each user."""


class Places:
    """Where the items of each value stand, under one model."""

    def __init__(self, recommender: Trained):
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
        self._learned: Floats | None = None
        if self._features and model.features is not None:
            self._learned = np.zeros_like(self._totals)
            rows = model.features.rows.weight.detach().float().cpu().numpy()
            for n, name in enumerate(model.features.of.names):
                self._learned[self._codes[name]] = rows[n]
        self._device = recommender.device
        by_value = torch.argsort(values, stable=True)
        starts = np.cumsum([0, *self._counts])[:-1]
        self._sharing = Sharing(items=items[by_value].numpy(), starts=starts)

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

    def place(self, cells: Mapping[str, Any]) -> Place | None:
        """Of an item with these cells in the items' table, its name among them; None: no known item is like it."""
        values: list[int] = []
        learned = np.zeros(self._totals.shape[1], dtype=np.float32)
        for feature in self._features:
            column, _, kind = feature.partition(":")
            named = (f"{feature}={value}" for value in cell_values(cells.get(column), kind == WORDS))
            shared = [code for code in map(self._codes.get, named) if code is not None]
            values += shared
            if shared and self._learned is not None:
                learned += self._learned[shared].mean(0)
        if not values:
            return None
        own = self._totals[values].sum(0) / self._counts[values].sum()
        return Place((own + learned).astype(np.float32), tuple(values))

    def placed(self, places: Sequence[Place]) -> Placed | None:
        """Items that belong there; None: there are none."""
        if not places:
            return None
        return Placed(
            rows=torch.from_numpy(np.stack([one.row for one in places])).to(self._device),
            sharing=self._sharing,
            values=np.concatenate([one.values for one in places]),
            starts=np.cumsum([0, *(len(one.values) for one in places)])[:-1],
        )
