"""Training with the item table divided between processes: blocks are the same on all, rows are on their owners.

A step looks up the rows of its events, targets and drawn items (sampled loss; each process draws among its own rows),
or those of its events, and sums the exact softmax shard by shard. Evaluation encodes the queries and ranks them against
every shard where it lies.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from prism.errors import InputError
from prism.ops.sampled_loss import Drawn
from prism.ops.sharded.rows import Rows
from prism.ops.sharded.softmax import sharded_softmax_loss
from prism.recommend.config import FitConfig
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.metrics import Ranks, concatenate, metric_values
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.model.recommender import RecommenderModel
from prism.recommend.model.sharded_table import ShardedTable
from prism.recommend.training.negatives import compact
from prism.recommend.training.shard_negatives import Shard, draw_shards
from prism.recommend.training.stream import StreamTask
from prism.recommend.training.task import Batch


def build_sharded(config: FitConfig, items: int, group: Any) -> RecommenderModel:
    """A model of so many items of which only this process's rows are made; `group` None: it has all."""
    for name in ("item_bias", "experts", "features"):
        if getattr(config, name):
            raise InputError(f"{name} is {getattr(config, name)!r}: a divided item table has rows alone; leave it out")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.seed)
        model = config.model().build(1)
    model.items = items
    model.embedding = ShardedTable(Rows(items + 1, group), config.model().backbone.dim, config.train.seed)
    return model


@dataclass(frozen=True, kw_only=True)
class ShardedTask(StreamTask):
    """Training on a prepared log; every process takes its own batches and all of them every step together."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """The sum over this process's events, and how many there are."""
        targets = batch.targets
        if self.objective.loss == "sampled":
            return super().loss(model, batch)
        self._check_exact()
        bare = cast(RecommenderModel, getattr(model, "module", model))
        tokens = batch.events.items
        small = compact(tokens, tokens, tokens[:0], bare.start)
        x = model(batch.events._replace(items=small.tokens), batch.packing, small.used).x
        table = cast(ShardedTable, bare.embedding)
        return sharded_softmax_loss(x, table.weight, targets, table.rows, bare.items), len(targets)

    def _check_exact(self) -> None:
        config = self.objective
        if config.loss != "softmax":
            raise InputError(f"loss is {config.loss!r}: a divided item table takes softmax or sampled")
        if config.focus:
            raise InputError(
                f"focus is {config.focus!r}: a divided item table has it with loss sampled; give that, or leave it out"
            )

    def _draw(self, model: nn.Module, batch: Batch) -> Drawn:
        rows = cast(ShardedTable, getattr(model, "module", model).embedding).rows
        if rows not in self._shards:
            config, (first, end) = self.objective, rows.range()
            counts = self.own_counts(first, min(end, self.split.train.n_items)).to(batch.targets.device)
            self._shards[rows] = Shard.of(counts, rows, negatives=config.draws, uniform=config.uniform)
        return draw_shards(self._shards[rows], batch.targets, batch.cu_seqlens, shared=self.objective.shared)

    def own_counts(self, first: int, end: int) -> Tensor:
        """Training events of the items first … end − 1."""
        return torch.from_numpy(self.prepared.item_counts[first:end])

    @cached_property
    def _shards(self) -> dict[Rows, Shard]:
        """What this process draws from, by how rows are divided: made at the first step, by all processes together."""
        return {}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on the validation queries, the same on every process."""
        bare = cast(RecommenderModel, model)
        block = max(1, min(1024, 16_000_000 // bare.items))
        parts = [self._ranks(bare, part) for part in self._valid.blocks(block)]
        values = metric_values(concatenate(parts), self.cutoffs)
        return {name: float(value.mean()) for name, value in values.items()}

    def _ranks(self, model: RecommenderModel, queries: Queries) -> Ranks:
        """Where the targets stand, from how many items each shard has above them."""
        log, table = self.split.log, cast(ShardedTable, model.embedding)
        rows = table.rows
        first, end = rows.range()
        mine = table.weight[: max(0, min(end, model.items) - first)]
        scores = ModelScorer(model, self.context).features(log, queries).to(mine.dtype) @ mine.T
        targets = torch.from_numpy(queries.targets(log).astype(np.int64)) - first
        here = ((targets >= 0) & (targets < len(mine))).nonzero()[:, 0]
        target = scores.new_zeros(len(queries))
        target[here] = scores[here, targets[here]]
        rows.sum(target, "ranks")
        counts = torch.stack([(scores > target[:, None]).sum(1), (scores == target[:, None]).sum(1)])
        rows.sum(counts, "ranks")
        above, tied = counts.cpu().numpy()
        return Ranks(above=above, tied=tied, candidates=np.full(len(queries), model.items))
