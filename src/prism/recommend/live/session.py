"""A live user: O(1) work per event, the same answers as encoding the whole history again."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prism.errors import InputError, Note
from prism.recommend.answer.ask import after_last, log_of
from prism.recommend.answer.choose import Filter, Recommendation, as_list, best, permitted
from prism.recommend.data.clock import Moment, seconds
from prism.recommend.data.log import Codes, Log
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.live.user_bytes import UserValue, pack_user
from prism.recommend.model.experts.user_state import state_after, updated
from prism.recommend.model.recommender import Events, ModelState, live_scores
from prism.recommend.trained import Trained
from prism.recommend.training.histories import pack


class Session:
    """Holds the model's state before the last event, and that event, whose answer may be asked for at any time.

    A model whose context is limited has no such state, nor has a baseline: there the last events are kept.
    """

    def __init__(self, recommender: Trained, history: Log):
        self._of, self._model = recommender, recommender.model
        known = history.items < self._model.items
        self._codes: Codes = history.items[known]
        self._times = history.times[known]
        self._user = state_after(self._codes, self._times)
        self._count = len(self._codes)
        self._state: ModelState | None = None
        self._last: Events | None = None  # None: the start token
        self._ahead: tuple[Tensor, ModelState] | None = None  # features and state after the last event, if computed
        if recommender.context is not None:
            self._codes, self._times = self._codes[-recommender.context :], self._times[-recommender.context :]
        elif self._count:
            self._catch_up(history)

    @property
    def length(self) -> int:
        """Events so far."""
        return self._count

    def update(self, item: object, time: Moment | None = None) -> bool:
        """Takes in one event; False if the item is unknown to the model, which is then skipped with a warning.

        `time` is in seconds since 1970, or a datetime, and not before the last event's; None: when that was.
        """
        code = int(self._of.log.item_codes([item])[0])
        if not 0 <= code < self._model.items:
            warnings.warn(Note(f"item {item!r} is unknown to the model and was skipped"), stacklevel=2)
            return False
        before = self._times[-1] if self._count else None
        when = int(before if before is not None else 0) if time is None else seconds(time)
        if before is not None and when < before:
            raise InputError(f"time {when} is before the last event's, {before}: give events in the order of time")
        if self._of.context is None:
            self._commit(when)
            since = -1 if before is None else when - int(before)
            self._last = self._event(code, since, when)
            self._codes, self._times = self._codes[:0], np.array([when])
        else:
            kept = self._of.context - 1
            self._codes = np.append(self._codes[len(self._codes) - min(kept, len(self._codes)) :], np.int32(code))
            self._times = np.append(self._times[len(self._times) - min(kept, len(self._times)) :], when)
        self._user = updated(self._user, code, when)
        self._count += 1
        return True

    def recommend(
        self,
        k: int = 10,
        *,
        exclude_seen: bool | None = None,
        allow: Filter | None = None,
        deny: Filter | None = None,
        at: Moment | None = None,
    ) -> list[Recommendation]:
        """The k items most likely to come next, best first; see `Recommender.recommend`."""
        mask = permitted(self._of.log, self._model.items, allow, deny)
        gone = None
        if self._of.excludes_seen if exclude_seen is None else exclude_seen:
            taken = self._user.taken.astype(np.int64)
            gone = np.zeros_like(taken), taken
        scores, codes = best(self.scores(None if at is None else seconds(at)), mask, gone, k)
        return as_list(self._of.log, scores[0], codes[0])

    @torch.inference_mode()
    def scores(self, at: int | None = None) -> Tensor:
        """[1, items]: every item's score now."""
        if self._of.baseline is not None:
            return self._of.baseline(*self._asked(at))
        x, experts = self._features(at), self._of.experts
        if experts is None:
            return self._model.scores(x)
        return live_scores(self._model, experts, self._model.scores(x), x, [self._user], [at])

    def _features(self, at: int | None) -> Tensor:
        """[1, dim]: after the last event."""
        if self._of.context is not None:
            return ModelScorer(self._model, self._of.context).features(*self._asked(at))
        if self._model.config.query_time or self._ahead is None:
            now = int(self._times[-1]) if self._count else 0
            self._ahead = self._step(now if at is None else at)
        return self._ahead[0]

    def _asked(self, at: int | None) -> tuple[Log, Queries]:
        """The question, after the events that are kept."""
        return after_last(log_of(self._of.log, self._codes, self._times), np.array([0]), self._model.items, at=at)

    def state(self) -> bytes:
        """All that is remembered of this user and nothing of anyone else, for `Recommender.session(state=…)`."""
        model, now = self._model, int(self._times[-1]) if self._count else 0
        if self._of.context is not None:
            recent = np.stack([self._codes.astype(np.int64), self._times], 1)
            arrays, pending = [recent], (-1, -1)
        elif not self._count:
            arrays, pending = [], (-1, -1)
        elif model.config.query_time:  # the last event waits for the time of the next
            assert self._state is not None
            assert self._last is not None
            arrays = [*_parts(self._state), np.zeros(model.config.backbone.dim, dtype=np.float32)]
            pending = (int(self._last.items[0]), int(self._last.since[0]))
        else:
            self._ahead = self._step(now) if self._ahead is None else self._ahead
            arrays, pending = [*_parts(self._ahead[1]), self._ahead[0][0].cpu().numpy()], (-1, -1)
        facts = np.array([self._count, now, *pending])
        return pack_user(UserValue(arrays=arrays, user=self._user, facts=facts), self._of)

    @classmethod
    def restored(cls, recommender: Trained, value: UserValue) -> "Session":
        """The session whose `state` this was."""
        made = cls(recommender, log_of(recommender.log, np.zeros(0, dtype=np.int32), None))
        count, now, code, since = value.facts.tolist()
        made._user = value.user
        made._count, made._times = count, np.array([now] * bool(count), dtype=np.int64)
        if recommender.context is not None:
            recent = value.arrays[0]
            made._codes, made._times = recent[:, 0].astype(np.int32), recent[:, 1]
        elif count:
            *parts, features = value.arrays
            state = made._state_of(parts)
            made._last = made._event(max(code, 0), since, now)
            if recommender.model.config.query_time:
                made._state = state
            else:
                made._ahead = torch.from_numpy(features.copy())[None].to(made._last.items.device), state
        return made

    def _state_of(self, parts: list[Any]) -> ModelState:
        device, left = self._of.device, iter(parts)
        shapes = [len(block.mixer.state_shapes()) for block in self._model.backbone.blocks]  # type: ignore
        shapes += [1] * (self._model.backbone.positions is not None)
        return tuple(
            tuple(torch.from_numpy(next(left).copy())[None].to(device) for _ in range(count)) for count in shapes
        )

    def _commit(self, when: int) -> None:
        """Moves the state past the last event, now that the time of the next is known."""
        usable = self._last is not None and not self._model.config.query_time
        if self._ahead is None or not usable:
            self._ahead = self._step(when)
        self._state, self._ahead = self._ahead[1], None

    @torch.inference_mode()
    def _step(self, asked: int) -> tuple[Tensor, ModelState]:
        # a start token happens when the first event does, which is now
        event = self._event(self._model.start, -1, asked) if self._last is None else self._last
        if self._model.config.query_time:
            event.times[0, 1] = asked
        if self._model.training:  # to ask is cheap, to tell every part again is not
            self._model.eval()
        return self._model.step(event, self._state)

    def _event(self, code: int, since: int, when: int) -> Events:
        device = self._of.device
        return Events(*(torch.tensor(x, device=device) for x in ([code], [since], [[when, when]])))

    @torch.inference_mode()
    def _catch_up(self, history: Log) -> None:
        """Encodes all events but the last."""
        model, log = self._model, log_of(history, self._codes, self._times)
        zero, last = np.array([0]), np.array([self._count - 1])
        asked = self._times[last]
        packed, _ = pack(log, zero, last, items=model.items, query_time=model.config.query_time, asked=asked)
        if self._count == 1:  # the start token alone takes the first event's time
            packed.events.times[0] = int(asked[0])
        model.eval()
        _, self._state = model.encode(packed.events.to(self._of.device), packed.cu_seqlens)
        since = int(self._times[-1] - self._times[-2]) if self._count > 1 else -1
        self._last = self._event(int(self._codes[-1]), since, int(asked[0]))
        self._codes, self._times = self._codes[:0], self._times[-1:]


def _parts(state: ModelState) -> list[Any]:
    return [part[0].cpu().numpy() for block in state for part in block]
