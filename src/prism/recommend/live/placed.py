"""Items that a model does not know but whose features it does: how they are scored until it has learned them.

The model's part of such an item is that of a row, begun as `prism update` begins it: the mean row of the known items
that share a value with it, in the columns that the model looks at, or in all if it looks at none; and what the rows of
values add, where the model has learned some. What the simple experts add to it is the mean of what they add to those
items, without those that the user has taken. No state depends on it: its events wait for the next model.
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
from prism.recommend.model.experts import Floats
from prism.recommend.model.experts.user_state import UserState, state_after
from prism.recommend.model.recommender import add_experts

if TYPE_CHECKING:
    from prism.recommend.recommender import Recommender


class Place(NamedTuple):
    """Where one item belongs."""

    row: NDArray[np.float32]
    values: tuple[int, ...]
    """Its values that known items have."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sharing:
    """The known items that have each value: of value v, items[starts[v]:starts[v + 1]]."""

    items: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Placed:
    """More columns of the scores: item n of these has the code (items of the model) + n."""

    rows: Float[Tensor, "M D"]
    bias: Tensor | None
    """Of each: the mean of the known items'."""
    sharing: Sharing
    values: NDArray[np.int64]
    """Of item n: values[starts[n]:starts[n + 1]]."""
    starts: NDArray[np.int64]

    @torch.inference_mode()
    def live(
        self,
        of: "Recommender",
        scores: Float[Tensor, "N I"],
        features: Float[Tensor, "N D"],
        states: Sequence[UserState],
        asked: Sequence[int | None],
    ) -> Float[Tensor, "N I_and_M"]:
        """Scores of the model's items and of these for live users, from the model's own scores."""
        own = features @ self.rows.T
        whole = torch.cat([scores, own if self.bias is None else own + self.bias], 1)
        if of.experts is None:
            return whole
        found, items = whole.cpu().numpy(), of.model.items
        known = np.ascontiguousarray(found[:, :items])
        add_experts(known, of.model, of.experts, features, states, asked)
        for n, state in enumerate(states):
            found[n, items:] += self._shared(known[n] - found[n, :items], state.taken)
        found[:, :items] = known
        return torch.from_numpy(found).log_softmax(1)

    def _shared(self, added: Floats, taken: NDArray[np.int32]) -> Floats:
        """[M]: the mean of what was added to known items, over those that share a value, as often as they share one."""
        counts = np.ones_like(added)
        counts[taken] = 0
        totals, weights = (
            np.add.reduceat(np.add.reduceat(part[self.sharing.items], self.sharing.starts)[self.values], self.starts)
            for part in (added * counts, counts)
        )
        left = added[counts > 0]  # where the user has taken all like items, what the least of the others gets
        least = left.min() if len(left) else 0.0
        return np.where(weights > 0, totals / np.maximum(weights, 1), least)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def scores(self, of: "Recommender", log: Log, queries: Queries) -> Float[Tensor, "Q I_and_M"]:
        """The same after any histories, one query of each."""
        features = ModelScorer(of.model, of.context).features(log, queries)
        pairs = zip(log.offsets[queries.users].tolist(), queries.positions.tolist(), strict=True)
        states = [state_after(log.items[first:end], log.times[first:end]) for first, end in pairs]
        return self.live(of, of.model.scores(features), features, states, log.times[queries.positions].tolist())


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
        self._learned: Floats | None = None
        if self._features and model.features is not None:
            self._learned = np.zeros_like(self._totals)
            rows = model.features.rows.weight.detach().float().cpu().numpy()
            for n, name in enumerate(model.features.of.names):
                self._learned[self._codes[name]] = rows[n]
        self._device, self._bias = recommender.device, None if model.bias is None else model.bias.detach().mean()
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
            bias=self._bias,
            sharing=self._sharing,
            values=np.concatenate([one.values for one in places]),
            starts=np.cumsum([0, *(len(one.values) for one in places)])[:-1],
        )
