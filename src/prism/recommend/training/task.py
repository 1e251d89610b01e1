"""Next-item recommendation as a task to train on: packed windows of histories, a loss, validation by full ranking."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from prism.config import Checked, Count
from prism.ops.common.packing import Packing
from prism.ops.sampled_loss import Drawn, Extras, sampled_log_likelihood
from prism.ops.softmax_loss import focused
from prism.recommend.data.log import Ints, concatenated_ranges
from prism.recommend.data.splits import Queries, Split
from prism.recommend.evaluation.metrics import CUTOFFS
from prism.recommend.evaluation.ranking import evaluate
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.model.experts import Experts, TrainingFeatures
from prism.recommend.model.experts.named import named
from prism.recommend.model.experts.training import Seen
from prism.recommend.model.recommender import Events, RecommenderModel
from prism.recommend.training.histories import pack
from prism.recommend.training.negatives import Proposal, at_drawn, at_items, compact, draw, proposal
from prism.recommend.training.objectives import ObjectiveConfig, objective

Windows = Literal["last", "all"]
# Events of a batch that are worth a thread of their own.
WORTH_A_PART = 64


@dataclass(frozen=True, kw_only=True)
class BatchConfig(Checked):
    """What one update of the weights sees."""

    batch: Count | None = None
    """Windows of histories at once. Small batches learn better: 32 beats 128 by far on ML-1M."""
    length: Count | None = None
    """Events of a window."""
    windows: Windows | None = None
    """Train on the last window of each history, or on all: cut anew at random places every epoch."""
    valid_queries: Count = 10_000
    """At most so many validation queries decide which epoch is the best, evenly spaced over all."""


class Batch(NamedTuple):
    """Packed windows: every token has the item that came after it as its target."""

    events: Events
    cu_seqlens: Tensor
    targets: Tensor
    windows: Tensor
    """[windows, 2]: user (or what else `owners` says) and first event, to name the batch in an error."""
    seen: Seen | None
    """What the experts see and say of the targets; None: there are none."""
    packing: Packing
    """`cu_seqlens` as the host knows it: a model that is given this need not ask the device."""


@dataclass(frozen=True, kw_only=True)
class RecommendationTask:
    """Training on `split.train`, watching NDCG on `split.valid`. `batches` depends on (seed, epoch) alone."""

    split: Split
    batching: BatchConfig
    objective: ObjectiveConfig
    query_time: bool = False
    experts: Experts | None = None
    """Whose probabilities are mixed with the model's."""
    context: int | None = None
    """Events of a history that count in validation; None: all."""
    seed: int = 0
    cutoffs: tuple[int, ...] = CUTOFFS

    @property
    def monitor(self) -> str | None:
        """The metric that decides: NDCG at the first cut-off; None where there is nothing to validate on."""
        return f"ndcg@{self.cutoffs[0]}" if len(self.split.valid) else None

    higher_is_better = True

    @property
    def start(self) -> str:
        """With experts, what these know together."""
        return "" if self.experts is None else "the experts alone"

    def changed(self, objective: ObjectiveConfig) -> "RecommendationTask":
        """The same by another objective, with what was counted already: it takes long."""
        made = replace(self, objective=objective)
        if "features" in vars(self):
            vars(made)["features"] = self.features
        return made

    def batches(self, epoch: int) -> Sequence[Batch]:
        """The batches of an epoch, each made when it is asked for."""
        rng = np.random.default_rng((self.seed, epoch))
        starts, ends, users = self._windows(rng)
        order = rng.permutation(len(starts))
        return Batches(self, starts[order], ends[order], users[order])

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """The sum over events, and how many there are."""
        targets = batch.targets
        if self.objective.loss == "sampled":
            losses = focused(-self.sampled_log_likelihoods(model, batch), self.objective.focus or 0.0)
            return losses.sum(), len(targets)
        contexts, added = (None, None) if batch.seen is None else batch.seen[:2]
        x, table, bias, weights = model(batch.events, batch.packing, None, contexts)
        return objective(self.objective, x, table, bias, targets, added, weights), len(targets)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        scorer = ModelScorer(cast(RecommenderModel, model), self.context, self.experts)
        found = evaluate(scorer, self.split.log, self._valid, cutoffs=self.cutoffs, samples=1)
        return {name: found[name] for name in found.values}

    def evaluate_part(self, model: nn.Module, number: int, of: int) -> tuple[dict[str, float], int]:
        """The same over one of several parts of the queries: sums, and how many they are."""
        first, end = (len(self._valid) * n // of for n in (number, number + 1))
        if first == end:
            return {}, 0
        scorer = ModelScorer(cast(RecommenderModel, model), self.context, self.experts)
        found = evaluate(scorer, self.split.log, self._valid[first:end], cutoffs=self.cutoffs, samples=1)
        return {name: float(value.sum()) for name, value in found.values.items()}, end - first

    def evaluation_seconds(self, model: nn.Module, queries: int = 200) -> float:
        """About how long `evaluate` takes, from a few of its queries."""
        if not len(self._valid):
            return 0.0
        few = self._valid[:: max(1, len(self._valid) // queries)]
        scorer = ModelScorer(cast(RecommenderModel, model), self.context, self.experts)
        evaluate(scorer, self.split.log, few[:8], cutoffs=self.cutoffs, samples=1)  # compiles
        began = time.monotonic()
        evaluate(scorer, self.split.log, few, cutoffs=self.cutoffs, samples=1)
        log = self.split.log
        return (time.monotonic() - began) * scorer.tokens(log, self._valid) / scorer.tokens(log, few)

    def describe(self, batch: Batch) -> str:
        ids = self.split.train.user_ids[batch.windows[:, 0].cpu().numpy()].tolist()
        return f"users {', '.join(map(repr, ids[:8]))}" + (", …" if len(ids) > 8 else "")

    def owners(self, users: Ints) -> Ints:
        """What the windows of a batch are named by, from users' codes."""
        return users

    def sampled_log_likelihoods(self, model: nn.Module, batch: Batch) -> Tensor:
        """[events]: of each target, estimated from drawn items."""
        drawn, items = self._draw(model, batch), self.split.train.n_items
        if batch.seen is None:
            small = compact(batch.events.items, batch.targets, drawn.items, items)
            x, table, bias, _ = model(batch.events._replace(items=small.tokens), batch.packing, small.used)
            return sampled_log_likelihood(x, table, small.targets, drawn._replace(items=small.drawn), bias=bias)
        contexts, added, names = batch.seen
        assert names is not None
        small = compact(batch.events.items, batch.targets, drawn.items, items, names.items)
        x, table, bias, weights = model(batch.events._replace(items=small.tokens), batch.packing, small.used, contexts)
        extras = Extras(
            small.named,
            at_items(added, names.of_target[:, None], weights, batch.targets[:, None])[:, 0],
            at_items(added, names.features, weights, names.items),
            at_drawn(added, weights, drawn.items, items),
        )
        return sampled_log_likelihood(x, table, small.targets, drawn._replace(items=small.drawn), extras, bias=bias)

    def _draw(self, model: nn.Module, batch: Batch) -> Drawn:
        """The items that stand for all others in this step."""
        source = self._proposal.to(batch.targets.device)
        return draw(source, batch.targets, batch.cu_seqlens, shared=self.objective.shared)

    @cached_property
    def _proposal(self) -> Proposal:
        """Of the events that can be targets."""
        starts, ends, _ = self._windows(np.random.default_rng(0))  # which events are in a window depends on no chance
        items = self.split.train.items[concatenated_ranges(starts, ends - starts)]
        counts = torch.from_numpy(np.bincount(items, minlength=self.split.train.n_items))
        return proposal(counts, self.objective.draws, self.objective.uniform)

    @cached_property
    def features(self) -> TrainingFeatures | None:
        """What the experts say of training events, from the events of other users."""
        return None if self.experts is None else TrainingFeatures.of_log(self.split.train, self.experts)

    @cached_property
    def _valid(self) -> Queries:
        queries = self.split.valid
        step = -(-len(queries) // self.batching.valid_queries)
        return queries[:: max(step, 1)]

    def _windows(self, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
        """(first event, one past the last, user) of each window."""
        train, length = self.split.train, cast(int, self.batching.length)
        users = np.flatnonzero(train.lengths)
        starts, ends = train.offsets[users], train.offsets[users + 1]
        if self.batching.windows == "last":
            return np.maximum(starts, ends - length), ends, users
        short = ends - starts <= length
        lead = np.where(short, 0, rng.integers(length, size=len(users)))  # the first window may be shorter
        count = -(-(ends - starts + lead) // length)
        which = np.repeat(np.arange(len(users)), count)
        nth = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        begin = starts[which] - lead[which] + nth * length
        return np.maximum(begin, starts[which]), np.minimum(begin + length, ends[which]), users[which]


@dataclass(frozen=True)
class Batches(Sequence[Batch]):
    """An epoch's batches, in order."""

    task: RecommendationTask
    starts: Ints
    ends: Ints
    users: Ints

    def __len__(self) -> int:
        return -(-len(self.starts) // cast(int, self.task.batching.batch))

    def __getitem__(self, n: Any) -> Any:
        if not 0 <= n < len(self):
            raise IndexError(n)
        size = cast(int, self.task.batching.batch)
        return self._of(slice(n * size, (n + 1) * size))

    def parts(self, n: int, most: int) -> Sequence[Callable[[], Batch]]:
        """Makers of batches that divide the windows of batch n, about as many events to each."""
        size = cast(int, self.task.batching.batch)
        which = np.arange(n * size, min((n + 1) * size, len(self.starts)))
        lengths = (self.ends - self.starts)[which]
        count = int(np.clip(lengths.sum() // WORTH_A_PART, 1, min(most, len(which))))
        shares, held = [list[int]() for _ in range(count)], np.zeros(count, dtype=np.int64)
        for place in np.argsort(-lengths, kind="stable"):  # the longest first, to whoever has least
            least = int(held.argmin())
            shares[least].append(int(which[place]))
            held[least] += lengths[place]
        return [partial(self._of, np.sort(share)) for share in shares]

    def _of(self, part: slice | Ints) -> Batch:
        starts, ends = self.starts[part], self.ends[part]
        train = self.task.split.train
        last = ends - 1  # the last event is a target only: the start token makes up the count
        packed, at = pack(
            train, starts, last, items=train.n_items, query_time=self.task.query_time, asked=train.times[last]
        )
        limits = packed.cu_seqlens.numpy()
        after = at + 1
        after[limits[:-1]] = starts
        targets = torch.from_numpy(train.items[after].astype(np.int64))
        windows = torch.from_numpy(np.stack([self.task.owners(self.users[part]), starts], 1))
        features = self.task.features
        seen = None if features is None else features.of(self.users[part], starts, ends)
        if seen is not None and self.task.objective.loss == "sampled":
            seen = seen._replace(named=named(seen.added, targets, train.n_items))
        return Batch(packed.events, packed.cu_seqlens, targets, windows, seen, Packing(tuple(limits.tolist())))
