"""What a pool remembers of each slot's user: a recurrent model's state, or the last events of a limited context."""

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from prism.recommend.answer.ask import after_last, log_of
from prism.recommend.answer.baseline import Baseline
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.live.network import live_model
from prism.recommend.trained import Trained
from prism.recommend.training.histories import pack

NONE = -1


@runtime_checkable
class Memory(Protocol):
    """One row per slot, cleared before it is first used; rows never touch each other."""

    @property
    def nbytes(self) -> int:
        """Memory of all of it."""

    def clear(self, slot: int) -> None:
        """Makes a slot's user new."""

    def take(self, slots: Any, codes: Any, before: Any, since: Any, now: Any) -> None:
        """One event of each of these slots, all different.

        Args:
            slots: [N].
            codes: [N]: items.
            before: [N]: time of the event before; anything where there is none.
            since: [N]: seconds since then; -1 where there is none.
            now: [N]: time of this one.
        """

    def features(self, slots: Any, times: Any, at: int | None) -> Tensor:
        """[N, D]: after the last event of each slot, which was at `times`, asked for at `at`; slot -1: someone new."""

    def scores(self, features: Tensor) -> Tensor:
        """[N, items]."""

    def encode(self, codes: Any, times: Any) -> tuple[list[Any], list[int]]:
        """What `row` gives of someone with these events, one at least."""

    def row(self, slot: int) -> tuple[list[Any], list[int]]:
        """A slot's arrays, and the item and gap of an event that they do not hold yet (-1: none)."""

    def put(self, slot: int, arrays: list[Any], pending: list[int]) -> None:
        """The inverse of `row`, in a cleared slot; someone without events may have no arrays."""


class RecurrentMemory:
    """States of fixed size, and the features after them."""

    def __init__(self, recommender: Trained, capacity: int):
        self._of, self._live = recommender, live_model(recommender)
        self._states = self._live.room(capacity)
        self._features = self._live.first.new_empty(capacity, self._live.first.shape[1])
        # an event that the state does not hold yet, because the model is told when the next one comes
        self._pending = np.full(capacity, NONE, dtype=np.int64)
        self._since = np.full(capacity, NONE, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._states) + self._features.nbytes

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        self._live.renew(self._states, slot)
        self._features[slot] = self._live.first[0]
        self._pending[slot] = self._since[slot] = NONE

    @torch.inference_mode()
    def take(self, slots: Any, codes: Any, before: Any, since: Any, now: Any) -> None:
        if self._live.eager:
            features = self._live.advance(self._states, slots, codes, since, np.zeros_like(since))
            self._features[self._at(slots)] = features
            return
        waiting = self._pending[slots] >= 0
        rows = slots[waiting]
        if len(rows):
            gap = (now - before)[waiting]
            self._live.advance(self._states, rows, self._pending[rows], self._since[rows], gap)
        self._pending[slots], self._since[slots] = codes, since

    @torch.inference_mode()
    def features(self, slots: Any, times: Any, at: int | None) -> Tensor:
        here = slots >= 0
        if not self._live.eager:
            here &= self._pending[slots] >= 0
        rows = slots[here]
        if not len(rows):
            return self._live.first.repeat(len(slots), 1)
        found = self._features[self._at(rows)] if self._live.eager else self._asked(rows, times[here], at)
        if len(rows) == len(slots):
            return found
        features = self._live.first.repeat(len(slots), 1)
        features[self._at(np.flatnonzero(here))] = found
        return features

    def _asked(self, rows: Any, times: Any, at: int | None) -> Tensor:
        """After the event that waits of each of these slots."""
        gap = np.zeros(len(rows), dtype=np.int64) if at is None else np.maximum(at - times, 0)
        return self._live.advance(self._states, rows, self._pending[rows], self._since[rows], gap, keep=False)

    def _at(self, rows: Any) -> Tensor:
        return torch.from_numpy(rows).to(self._live.device)

    def scores(self, features: Tensor) -> Tensor:
        return self._live.scores(features)

    @torch.inference_mode()
    def encode(self, codes: Any, times: Any) -> tuple[list[Any], list[int]]:
        live, model = self._live, self._live.model
        log = log_of(self._of.log, codes, times)
        end = np.array([len(codes) if live.eager else len(codes) - 1])
        asked = None if live.eager else times[-1:]
        packed, _ = pack(log, np.array([0]), end, items=live.items, query_time=not live.eager, asked=asked)
        model.eval()
        y, state = model.encode(packed.events.to(live.device), packed.cu_seqlens)
        arrays = [part[0].cpu().numpy() for block in state for part in block]
        if live.eager:
            return [*arrays, y[-1].cpu().numpy()], [NONE, NONE]
        since = times[-1] - times[-2] if len(times) > 1 else NONE
        return [*arrays, np.zeros_like(y[-1].cpu().numpy())], [int(codes[-1]), int(since)]

    def row(self, slot: int) -> tuple[list[Any], list[int]]:
        features = self._features[slot] if self._live.eager else torch.zeros_like(self._features[slot])
        arrays = [*self._live.row(self._states, slot), features.cpu().numpy()]
        return arrays, [int(self._pending[slot]), int(self._since[slot])]

    @torch.inference_mode()
    def put(self, slot: int, arrays: list[Any], pending: list[int]) -> None:
        if arrays:
            *parts, features = arrays
            self._live.put(self._states, slot, parts)
            self._features[slot] = torch.from_numpy(features.copy()).to(self._live.device)
        self._pending[slot], self._since[slot] = pending


class WindowMemory:
    """The last events of each user, encoded together when asked for."""

    def __init__(self, recommender: Trained, capacity: int, context: int):
        self._of, self._context = recommender, context
        self._recent = [np.zeros((0, 2), dtype=np.int64)] * capacity  # (item, time), latest last

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._recent)

    def clear(self, slot: int) -> None:
        self._recent[slot] = np.zeros((0, 2), dtype=np.int64)

    def take(self, slots: Any, codes: Any, before: Any, since: Any, now: Any) -> None:
        for slot, code, time in zip(slots.tolist(), codes.tolist(), now.tolist(), strict=True):
            kept = self._recent[slot][max(0, len(self._recent[slot]) + 1 - self._context) :]
            self._recent[slot] = np.append(kept, [[code, time]], axis=0)

    def features(self, slots: Any, times: Any, at: int | None) -> Tensor:
        return ModelScorer(self._of.model, self._context).features(*self._asked(slots, at))

    def _asked(self, slots: Any, at: int | None) -> tuple[Log, Queries]:
        """What comes after the events of each slot?"""
        recent = [self._recent[slot] if slot >= 0 else self._recent[0][:0] for slot in slots.tolist()]
        events, everyone = np.concatenate(recent), np.arange(len(slots))
        log = replace(
            self._of.log,
            offsets=np.cumsum([0, *map(len, recent)]),
            items=events[:, 0].astype(np.int32),
            times=events[:, 1],
            user_ids=everyone,
        )
        return after_last(log, everyone, self._of.model.items, at=at)

    def scores(self, features: Tensor) -> Tensor:
        return self._of.model.scores(features)

    def encode(self, codes: Any, times: Any) -> tuple[list[Any], list[int]]:
        recent = np.stack([codes.astype(np.int64), times], 1)
        return [recent[max(0, len(recent) - self._context) :]], [NONE, NONE]

    def row(self, slot: int) -> tuple[list[Any], list[int]]:
        return [self._recent[slot]], [NONE, NONE]

    def put(self, slot: int, arrays: list[Any], pending: list[int]) -> None:
        if arrays:
            self._recent[slot] = arrays[0]


class BaselineMemory(WindowMemory):
    """The last events of each user, for a baseline: its scores are all the features that it has."""

    def __init__(self, recommender: Trained, capacity: int, baseline: Baseline):
        super().__init__(recommender, capacity, baseline.last)
        self._baseline = baseline

    def features(self, slots: Any, times: Any, at: int | None) -> Tensor:
        return self._baseline(*self._asked(slots, at))

    def scores(self, features: Tensor) -> Tensor:
        return features


def memory_of(recommender: Trained, capacity: int) -> Memory:
    """What suits a recommender."""
    if recommender.baseline is not None:
        return BaselineMemory(recommender, capacity, recommender.baseline)
    if recommender.context is not None:
        return WindowMemory(recommender, capacity, recommender.context)
    return RecurrentMemory(recommender, capacity)
