"""Training on a prepared log, a few partitions in memory at a time, the same whoever reads them.

An epoch takes the partitions in a random order, a group of them at a time; the windows of a group are shuffled together
and cut into batches. Groups are dealt to lanes and the lanes take turns, so that processes whose number divides that of
the lanes read different partitions. How many windows a group has follows from the table of lengths: any batch can be
made without those before it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, cast

import numpy as np
import torch

from prism.config import Checked, Count, Natural
from prism.recommend.data.log import Ints, Log
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.data.splits import Queries, Split
from prism.recommend.model.experts.training import Folds, TrainingFeatures
from prism.recommend.training.negatives import Proposal, proposal
from prism.recommend.training.task import Batch, Batches, RecommendationTask
from prism.train.prefetch import Prefetched

# Scores of one evaluation, about: queries × items.
SCORES = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Checked):
    """How partitions are read."""

    group: Count = 4
    """Partitions whose windows are shuffled together."""
    lanes: Count = 8
    """Groups that take turns; a number that the processes divide lets each read partitions of its own."""
    workers: Natural = 1
    """Threads that make batches beside the training step; 0: none."""


@dataclass(frozen=True, kw_only=True)
class StreamTask(RecommendationTask):
    """Next-item recommendation on all of `prepared`; `split` is the sample of it that validation looks at."""

    prepared: Prepared
    stream: StreamConfig = field(default_factory=StreamConfig)
    folds: Folds | None = None
    """What the experts say of training events; a partition's users are of one fold."""

    def batches(self, epoch: int) -> Sequence[Batch]:
        """The batches of an epoch, made beside the step that uses the one before."""
        made = StreamBatches(self, epoch)
        return Prefetched(made, workers=self.stream.workers) if self.stream.workers else made

    def describe(self, batch: Batch) -> str:
        return f"partitions {', '.join(map(str, sorted(set(batch.windows[:, 0].tolist()))))}"

    @cached_property
    def _proposal(self) -> Proposal:
        counts = torch.from_numpy(self.prepared.item_counts)
        return proposal(counts, self.objective.draws, self.objective.uniform)

    @cached_property
    def _valid(self) -> Queries:
        """As many queries as are asked for, or as have SCORES scores: of a large catalogue fewer are looked at."""
        most = min(self.batching.valid_queries, max(1000, SCORES // self.prepared.manifest.candidates))
        return self.split.valid[:: max(1, -(-len(self.split.valid) // most))]

    @cached_property
    def windows_of(self) -> Ints:
        """[partitions]: windows of each."""
        table, length = self.prepared.lengths, cast(int, self.batching.length)
        users = table["users"].to_numpy()
        each = users if self.batching.windows == "last" else users * -(-table["length"].to_numpy() // length)
        counts = np.bincount(table["partition"].to_numpy(), weights=each, minlength=len(self.prepared))
        return counts.astype(np.int64)

    def cut(self, train: Log, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
        """(first event, one past the last, user) of the windows: the last of each history, or all.

        All: as few as hold the history, the first of them shorter by a random part of what is left over.
        """
        length, users = cast(int, self.batching.length), np.flatnonzero(train.lengths)
        starts, ends = train.offsets[users], train.offsets[users + 1]
        if self.batching.windows == "last":
            return np.maximum(starts, ends - length), ends, users
        count = -(-(ends - starts) // length)
        lead = rng.integers(np.where(count > 1, count * length - (ends - starts), 0) + 1)
        which = np.repeat(np.arange(len(users)), count)
        nth = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        begin = (starts - lead)[which] + nth * length
        return np.maximum(begin, starts[which]), np.minimum(begin + length, ends[which]), users[which]


@dataclass(frozen=True, kw_only=True)
class _Group(RecommendationTask):
    """Some partitions."""

    folds: Folds | None
    partition: Ints
    """Of each user."""

    def owners(self, users: Ints) -> Ints:
        """Partitions: a user's code means nothing outside of the group."""
        return self.partition[users]

    @cached_property
    def features(self) -> TrainingFeatures | None:
        if self.experts is None or self.folds is None:
            return None
        return TrainingFeatures(self.split.train, self.experts, self.partition % len(self.folds.tables), self.folds)


class StreamBatches(Sequence[Batch]):
    """An epoch's batches by number."""

    def __init__(self, task: StreamTask, epoch: int):
        self.task, self.epoch = task, epoch
        rng = np.random.default_rng((task.seed, epoch))
        order = rng.permutation(len(task.prepared))
        order = order[task.windows_of[order] > 0]
        size = task.stream.group
        self.groups = [order[a : a + size] for a in range(0, len(order), size)]
        self.place = self._turns()
        self._kept: OrderedDict[int, Batches] = OrderedDict()
        self._lock = Lock()

    def _turns(self) -> Ints:
        """[batches, 2]: the group of each batch and its place there; one batch of each lane in turn."""
        task, lanes = self.task, self.task.stream.lanes
        windows = np.array([task.windows_of[group].sum() for group in self.groups])
        counts = -(-windows // cast(int, task.batching.batch))
        group = np.repeat(np.arange(len(counts)), counts)
        inside = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
        lane, turn = group % lanes, np.empty_like(group)
        for n in range(min(lanes, len(counts))):
            mine = lane == n  # in the order of its groups
            turn[mine] = np.arange(np.count_nonzero(mine))
        by = np.lexsort((lane, turn))
        return np.stack([group[by], inside[by]], 1)

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, n: Any) -> Any:
        if not 0 <= n < len(self):
            raise IndexError(n)
        group, inside = self.place[n].tolist()
        return self._group(group)[inside]

    def _group(self, number: int) -> Batches:
        """A group's batches; as many groups are kept as there are lanes, and one that comes next."""
        with self._lock:  # two threads would read one group twice
            found = self._kept.get(number)
            if found is None:
                found = self._read(number)
                while len(self._kept) > self.task.stream.lanes:
                    self._kept.popitem(last=False)
            self._kept[number] = found
            self._kept.move_to_end(number)
            return found

    def _read(self, number: int) -> Batches:
        task = self.task
        numbers = self.groups[number].tolist()
        split = task.prepared.split(numbers)
        rng = np.random.default_rng((task.seed, self.epoch, 1 + number))
        starts, ends, users = task.cut(split.train, rng)
        order = rng.permutation(len(starts))
        group = _Group(
            split=split,
            batching=task.batching,
            objective=task.objective,
            query_time=task.query_time,
            experts=task.experts,
            folds=task.folds,
            partition=np.repeat(numbers, [task.prepared.manifest.parts[n].users for n in numbers]),
        )
        return Batches(group, starts[order], ends[order], users[order])


def sample(prepared: Prepared, queries: int, *, events: int = 2_000_000) -> Split:
    """Whole partitions, the first ones, until they have so many validation queries or events: a sample of users."""
    numbers, asked, held = list[int](), 0, 0
    for number, part in enumerate(prepared.manifest.parts):
        if numbers and (asked >= queries or held + part.events > events):
            break
        if part.events:
            numbers.append(number)
            held += part.events
            asked += len(prepared.split([number]).valid)
    return prepared.split(numbers)
