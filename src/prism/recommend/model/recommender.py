"""The recommender: item table (+ time gaps) → backbone (→ W) → score_i = features · table_i (+ b_i), the same table.

Row i of the table is item i's own, and where items have features what it shares with others (`item_features.py`).
"""

import math
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.config import at_least
from prism.errors import InputError
from prism.layers.base.dropout import Dropout
from prism.layers.base.initial import initialise
from prism.layers.base.mixer import GROWS, State
from prism.models.backbone import BackboneConfig
from prism.models.one_token import versions
from prism.ops.common.packing import Limits
from prism.recommend.data.items import ItemValues
from prism.recommend.model.experts import Floats, check_experts
from prism.recommend.model.item_features import ItemFeatures
from prism.recommend.model.mixture import Gates
from prism.recommend.model.sharded_table import ShardedTable

# Two buckets per octave of seconds reach 2^31 s: any clock that counts from 1970.
GAP_BUCKETS = 63
ModelState = tuple[State, ...]


class Events(NamedTuple):
    """Events as tensors: packed [T] with `cu_seqlens`, or one of each sequence [N]."""

    items: Tensor
    """Codes; the number of items stands for the start of a sequence."""
    since: Tensor
    """Seconds since the event before it; -1 where there is none."""
    times: Tensor
    """[…, 2]: when it happened, and when the one after it is asked for, in seconds."""

    def to(self, device: torch.device) -> "Events":
        """The same on a device."""
        return Events(*(part.to(device) for part in self))


@dataclass(frozen=True, kw_only=True)
class RecommenderConfig:
    """A model of what comes next."""

    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    """Blocks between the two uses of the item table."""
    time_gaps: bool = False
    """Tell the model how long before each event the previous one was."""
    query_time: bool = False
    """Tell the model when the answer is asked for; in evaluation that is when the next event happened."""
    item_bias: bool = False
    """A learned offset of each item's score."""
    experts: tuple[str, ...] = ()
    """Simple experts that the model's softmax is mixed with (see `model/experts`); none: the model alone."""
    projection: bool = False
    """A learned map of the features before they meet the table. Without it the latest item is drawn to itself."""

    def __post_init__(self) -> None:
        check_experts(self.experts)

    def build(self, items: int, features: ItemValues | None = None) -> "RecommenderModel":
        """A model of so many items, with what is known of them, its weights drawn from torch's generator."""
        at_least("items", items, 1)
        return RecommenderModel(self, items, features)


class Outputs(NamedTuple):
    """What a loss needs."""

    x: Float[Tensor, "T D"]
    """Features of every token."""
    table: Float[Tensor, "I D"]
    bias: Float[Tensor, " I"] | None
    weights: Float[Tensor, "T K"] | None
    """Of the experts' features; None: there are no experts."""


class RecommenderModel(nn.Module):
    """Every sequence begins with a start token, so that an empty history has features too."""

    def __init__(self, config: RecommenderConfig, items: int, features: ItemValues | None = None):
        super().__init__()
        self.config, self.items = config, items
        dim = config.backbone.dim
        self.embedding: nn.Embedding | ShardedTable = nn.Embedding(items + 1, dim)
        self.since = nn.Embedding(GAP_BUCKETS + 1, dim) if config.time_gaps else None
        self.until = nn.Embedding(GAP_BUCKETS + 1, dim) if config.query_time else None
        self.bias = nn.Parameter(torch.zeros(items)) if config.item_bias else None
        self.projection = nn.Linear(dim, dim, bias=False) if config.projection else None
        initialise(self)
        self.features = None if features is None else ItemFeatures(features, dim)
        # positions bring a dropout of their own
        self.dropout = Dropout(0.0 if config.backbone.positions else config.backbone.dropout)
        self.backbone = config.backbone.build()
        self.gates = Gates(dim, config.experts) if config.experts else None
        if config.experts and self.projection is not None:
            nn.init.zeros_(self.projection.weight)  # what the experts say stands until the model knows better
        self._kept_rows: tuple[tuple[Any, ...], Tensor] | None = None

    def train(self, mode: bool = True) -> "RecommenderModel":
        """Training forgets the rows that were made once, as `Backbone.train` forgets its own."""
        if mode:
            self._kept_rows = None
        return super().train(mode)

    @property
    def start(self) -> int:
        """The code of the start token."""
        return self.items

    @cached_property
    def grows(self) -> bool:
        """Whether the state grows with the history, as that of attention does."""
        return any(GROWS in shape for block in self.backbone.blocks for shape in block.mixer.state_shapes())  # type: ignore

    @property
    def table(self) -> Float[Tensor, "I D"]:
        """One row per item."""
        return self._rows()[: self.items]

    def forward(
        self,
        events: Events,
        cu_seqlens: Limits,
        used: Int[Tensor, " U"] | None = None,
        contexts: Float[Tensor, "T C"] | None = None,
    ) -> Outputs:
        """What a loss needs; contexts are what the experts see (see `TrainingFeatures`).

        With `used`, the codes of some items and last the start token's, there are no others: the events have codes
        among these, and so have the table and bias. The table's gradient is then sparse.
        """
        rows = self._rows(used)
        bias = self.bias if used is None or self.bias is None else self.bias[used[:-1]]
        x = self._encode(rows, events, cu_seqlens, None)[0]
        weights = None if self.gates is None else self.gates(x, contexts)
        return Outputs(x, rows[:-1], bias, weights)

    def encode(
        self, events: Events, cu_seqlens: Limits, state: ModelState | None = None
    ) -> tuple[Float[Tensor, "T D"], ModelState]:
        """Packed sequences, each from its state: features after every token, and the states after the last."""
        if isinstance(self.embedding, ShardedTable):  # only the rows that are used can be had
            every = torch.cat([events.items, events.items.new_tensor([self.start])])
            used, codes = every.unique(return_inverse=True)
            return self._encode(self._rows(used), events._replace(items=codes[:-1]), cu_seqlens, state)
        return self._encode(self._rows(), events, cu_seqlens, state)

    def step(self, events: Events, state: ModelState | None) -> tuple[Float[Tensor, "N D"], ModelState]:
        """One event of every sequence."""
        x, state = self.backbone.step(self._embed(self._rows(), events), state, events.times)
        return self._project(x), state

    def scores(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N I"]:
        """A score for every item."""
        scores = features @ self.table.T
        return scores if self.bias is None else scores + self.bias

    def expert_weights(self, features: Float[Tensor, "N D"], contexts: Floats) -> Floats:
        """What the experts' features are multiplied by."""
        assert self.gates is not None
        weights: Floats = self.gates(features, torch.from_numpy(contexts).to(features.device)).cpu().numpy()
        return weights

    def _project(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        return x if self.projection is None else self.projection(x)

    def _rows(self, used: Int[Tensor, " U"] | None = None) -> Float[Tensor, "I_and_start D"]:
        """The rows of all items, or of those used, and the start token's; made once where nothing is trained."""
        if used is not None or self.features is None or torch.is_grad_enabled():
            return self._make_rows(used)
        now = versions((self.embedding.weight, *self.features.parameters()))
        if self._kept_rows is None or self._kept_rows[0] != now:
            self._kept_rows = (now, self._make_rows(None))
        return self._kept_rows[1]

    def _make_rows(self, used: Int[Tensor, " U"] | None) -> Float[Tensor, "I_and_start D"]:
        weight = self.embedding.weight
        if isinstance(self.embedding, ShardedTable):
            if used is None:
                raise InputError("the item table is divided between processes: load the run in one to ask it")
            return self.embedding(used)
        shared = None if self.features is None else F.pad(self.features(), (0, 0, 0, 1))
        if used is not None:
            # processes exchange dense gradients only
            alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
            weight = F.embedding(used, weight, sparse=alone)
            shared = None if shared is None else F.embedding(used, shared)
        return weight if shared is None else weight + shared

    def _encode(
        self, rows: Tensor, events: Events, cu_seqlens: Limits, state: ModelState | None
    ) -> tuple[Tensor, ModelState]:
        x, state = self.backbone(self._embed(rows, events)[None], state, cu_seqlens, events.times[None])
        return self._project(x[0]), state

    def _embed(self, rows: Float[Tensor, "I_and_start D"], events: Events) -> Float[Tensor, "*tokens D"]:
        x = F.embedding(events.items, rows)
        if self.since is not None:
            x = x + self.since(gap_bucket(events.since))
        if self.until is not None:
            x = x + self.until(gap_bucket(events.times[..., 1] - events.times[..., 0]))
        # the table's rows have length 1, as scores want them; the blocks add vectors with entries of variance 1
        return self.dropout(x * self.config.backbone.dim**0.5)


def gap_limits() -> list[int]:
    """The smallest gap of each bucket but the first: 1 + seconds ≥ 2^{n/2}, in whole numbers."""
    return [math.isqrt(2**n - 1) for n in range(GAP_BUCKETS)]


def gap_bucket(seconds: Int[Tensor, "*tokens"]) -> Int[Tensor, "*tokens"]:
    """1 + ⌊2 log₂(1 + seconds)⌋, at most the last bucket; 0 where there is no gap (-1)."""
    return torch.bucketize(seconds, _gap_limits(seconds.device), right=True)


@cache
def _gap_limits(device: torch.device) -> Int[Tensor, " buckets"]:
    with torch.inference_mode(False):
        return torch.tensor(gap_limits(), device=device)
