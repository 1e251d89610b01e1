"""Many live users: their states side by side in one array, events of many users applied in one step.

A user's state never touches another's: a step computes each user alone, in the same order of additions whoever else is
in the batch. All methods may be called from any thread; one lock makes them take turns.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prism.config import at_least
from prism.errors import InputError
from prism.recommend.ask import after_last
from prism.recommend.choose import Filter, Recommendation, as_list, permitted
from prism.recommend.data.log import Codes
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.live import LiveModel
from prism.recommend.model.experts.user_state import UserState, empty_state, updated
from prism.recommend.model.recommender import live_scores
from prism.recommend.user_bytes import UserValue, pack_user, unpack_user

if TYPE_CHECKING:
    from prism.recommend.recommender import Recommender

User = Hashable
NOTHING = -1


class Facts(NamedTuple):
    """What is known of each slot's user beside the state: one array each."""

    count: Any
    """Events so far."""
    time: Any
    """Of the latest event."""
    pending: Any
    """The item of the event that the state does not hold yet; -1: it holds all."""
    since: Any
    """That event's seconds since the one before."""


class SessionPool:
    """The states of at most `capacity` users; beyond that, whoever was idle longest is forgotten.

    A recurrent model's state has a fixed size. A model with a limited context keeps its last events instead and
    encodes them on demand.
    """

    def __init__(
        self, recommender: "Recommender", capacity: int = 4096, *, evicted: Callable[[User], None] | None = None
    ):
        at_least("capacity", capacity, 1)
        self._of, self.capacity, self._evicted = recommender, capacity, evicted
        self._lock = RLock()
        self._slots: OrderedDict[User, int] = OrderedDict()  # by how long they have been idle
        self._free = list(range(capacity - 1, -1, -1))
        self._seen: list[Codes] = [np.zeros(0, dtype=np.int32)] * capacity
        self._facts = Facts(*(np.full(capacity, start, dtype=np.int64) for start in (0, 0, NOTHING, NOTHING)))
        self._experts = recommender.experts
        self._users: list[UserState] = [] if self._experts is None else [empty_state() for _ in range(capacity)]
        self._context = recommender.context
        self._items = recommender.model.items
        if self._context is None:
            self._live = LiveModel(recommender)
            self._states = self._live.room(capacity)
            self._features = self._live.first.repeat(capacity, 1).clone()
        else:
            self._recent = [np.zeros((0, 2), dtype=np.int64)] * capacity  # (item, time), latest last

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, user: User) -> bool:
        return user in self._slots

    @property
    def nbytes(self) -> int:
        """Memory of all states."""
        parts = self._states if self._context is None else self._recent
        mine = sum(part.nbytes for user in self._users for part in user)
        return sum(part.nbytes for part in parts) + sum(part.nbytes for part in self._seen) + mine

    def length(self, user: User) -> int:
        """Events of a user so far; 0 for someone who is not here."""
        with self._lock:
            slot = self._slots.get(user)
            return 0 if slot is None else int(self._facts.count[slot])

    def latest(self, user: User) -> int:
        """The time of a user's latest event; 0 for someone without any."""
        with self._lock:
            slot = self._slots.get(user)
            return 0 if slot is None else int(self._facts.time[slot])

    def update(
        self, users: Sequence[User], items: Sequence[object], times: Sequence[int | None] | None = None
    ) -> list[bool]:
        """Takes in one event each, in order; a user may have several. False where the model does not know the item.

        Someone who is not here yet begins without events. Without a time an event happens when the last one did.
        """
        when = [None] * len(users) if times is None else list(times)
        if not len(users) == len(items) == len(when):
            raise InputError(f"{len(users)} users, {len(items)} items and {len(when)} times: give one each")
        codes = self._of.log.item_codes(items)
        known = ((codes >= 0) & (codes < self._items)).tolist()
        with self._lock:
            for events in _rounds(users, known, self.capacity):
                slots = np.array([self._slot(users[n]) for n in events])
                self._take(slots, codes[events].astype(np.int64), [when[n] for n in events])
        return known

    def recommend(
        self,
        users: Sequence[User],
        k: int = 10,
        *,
        exclude_seen: bool | None = None,
        allow: Filter | None = None,
        deny: Filter | None = None,
        at: int | None = None,
    ) -> list[list[Recommendation]]:
        """The k best items of each user, best first; see `Recommender.recommend`. Users who are not here are new."""
        at_least("k", k, 1)
        mask = permitted(self._of.log, self._items, allow, deny)
        scores, codes = self.best(users, k, mask, exclude_seen, at)
        return [as_list(self._of.log, row, items) for row, items in zip(scores, codes, strict=True)]

    @torch.inference_mode()
    def best(
        self, users: Sequence[User], k: int, mask: Tensor, exclude_seen: bool | None = None, at: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """(scores, codes) [N, k] of `recommend`, among the items that `mask` permits."""
        leaves_out = self._of.excludes_seen if exclude_seen is None else exclude_seen
        with self._lock:
            slots = np.array([self._slots.get(user, NOTHING) for user in users], dtype=np.int64)
            for user in users:
                if user in self._slots:
                    self._slots.move_to_end(user)
            scores = self._scores(slots, at)
            seen = [self._seen[slot] if slot >= 0 and leaves_out else self._seen[0][:0] for slot in slots.tolist()]
        if not mask.all():
            scores.masked_fill_(~mask, -torch.inf)
        rows = np.repeat(np.arange(len(seen)), [len(codes) for codes in seen])
        if len(rows):
            scores[torch.from_numpy(rows), torch.from_numpy(np.concatenate(seen).astype(np.int64))] = -torch.inf
        return scores.topk(min(k, self._items))

    def state(self, user: User) -> bytes:
        """All that is remembered of one user, and nothing of anyone else; for `restore`, here or elsewhere."""
        with self._lock:
            slot = self._slots.get(user)
            if slot is None:
                raise InputError(f"user {user!r} is not in the pool")
            if self._context is None:
                features = self._features[slot] if self._live.eager else torch.zeros_like(self._features[slot])
                arrays = [*self._live.row(self._states, slot), features.numpy()]
            else:
                arrays = [self._recent[slot]]
            facts = np.array([column[slot] for column in self._facts])
            user = None if self._experts is None else self._users[slot]
            return pack_user(UserValue(arrays=arrays, seen=self._seen[slot], user=user, facts=facts), self._of)

    def restore(self, user: User, state: bytes) -> None:
        """Puts a user's state, as `state` gave it, in place of what is here."""
        value = unpack_user(state, self._of)
        with self._lock:
            slot = self._slot(user)
            if self._context is None:
                self._clear(slot)
                if value.facts[0]:
                    *parts, features = value.arrays
                    self._live.put(self._states, slot, parts)
                    self._features[slot] = torch.from_numpy(features.copy())
            else:
                self._recent[slot] = value.arrays[0]
            self._seen[slot] = value.seen
            if value.user is not None:
                self._users[slot] = value.user
            for column, fact in zip(self._facts, value.facts.tolist(), strict=True):
                column[slot] = fact

    def load(self, user: User, items: Sequence[object], times: Sequence[int] | None = None) -> None:
        """Begins a user anew with a whole history, oldest first."""
        session = self._of.session(history=list(items), times=times)
        self.restore(user, session.state())

    def drop(self, user: User) -> bool:
        """Forgets a user; whether there was one."""
        with self._lock:
            slot = self._slots.pop(user, None)
            if slot is None:
                return False
            self._clear(slot)
            self._free.append(slot)
            return True

    def _slot(self, user: User) -> int:
        slot = self._slots.get(user)
        if slot is None:
            if not self._free:
                oldest = next(iter(self._slots))
                self.drop(oldest)
                if self._evicted is not None:
                    self._evicted(oldest)
            slot = self._slots[user] = self._free.pop()
        self._slots.move_to_end(user)
        return slot

    def _clear(self, slot: int) -> None:
        if self._experts is not None:
            self._users[slot] = empty_state()
        self._seen[slot] = self._seen[slot][:0].copy()
        for column, start in zip(self._facts, (0, 0, NOTHING, NOTHING), strict=True):
            column[slot] = start
        if self._context is None:
            self._live.renew(self._states, [slot])
            self._features[slot] = self._live.first[0]
        else:
            self._recent[slot] = self._recent[slot][:0].copy()

    def _take(self, slots: Any, codes: Any, when: list[int | None]) -> None:
        """One event of each of these slots, all different."""
        facts = self._facts
        now = np.array(
            [facts.time[slot] if time is None else int(time) for slot, time in zip(slots, when, strict=True)]
        )
        since = np.where(facts.count[slots] > 0, now - facts.time[slots], NOTHING)
        if self._context is not None:
            for slot, code, time in zip(slots.tolist(), codes.tolist(), now.tolist(), strict=True):
                kept = self._recent[slot][max(0, len(self._recent[slot]) + 1 - self._context) :]
                self._recent[slot] = np.append(kept, [[code, time]], axis=0)
        elif self._live.eager:
            zeros = np.zeros(len(slots), dtype=np.int64)
            features = self._live.advance(self._states, slots, codes, since, zeros)
            self._features[torch.from_numpy(slots)] = features
        else:
            waiting = facts.pending[slots] >= 0
            rows = slots[waiting]
            if len(rows):
                gap = now[waiting] - facts.time[rows]
                self._live.advance(self._states, rows, facts.pending[rows], facts.since[rows], gap)
            facts.pending[slots], facts.since[slots] = codes, since
        facts.time[slots] = now
        facts.count[slots] += 1
        for slot, code in zip(slots.tolist(), codes.tolist(), strict=True):
            if self._experts is not None:
                self._users[slot] = updated(self._users[slot], code, int(facts.time[slot]))
            seen = self._seen[slot]
            place = int(seen.searchsorted(np.int32(code)))
            if place == len(seen) or seen[place] != code:
                grown = np.empty(len(seen) + 1, dtype=np.int32)  # np.insert takes ten times as long
                grown[:place], grown[place], grown[place + 1 :] = seen[:place], code, seen[place:]
                self._seen[slot] = grown

    def _scores(self, slots: Any, at: int | None) -> Tensor:
        features = self._after(slots, at)
        scores = self._of.model.scores(features) if self._context is not None else self._live.scores(features)
        if self._experts is None:
            return scores
        users = [self._users[slot] if slot >= 0 else empty_state() for slot in slots.tolist()]
        return live_scores(self._of.model, self._experts, scores, features, users, [at] * len(users))

    def _after(self, slots: Any, at: int | None) -> Tensor:
        """[N, D]: features after the last event of each user."""
        if self._context is not None:
            return self._encoded(slots, at)
        features = self._live.first.repeat(len(slots), 1)
        here = slots >= 0
        if self._live.eager:
            features[torch.from_numpy(here)] = self._features[torch.from_numpy(slots[here])]
        else:
            waiting = here & (self._facts.pending[slots] >= 0)
            rows = slots[waiting]
            if len(rows):
                facts = self._facts
                gap = np.zeros(len(rows), dtype=np.int64) if at is None else at - facts.time[rows]
                found = self._live.advance(
                    self._states, rows, facts.pending[rows], facts.since[rows], gap, keep=False
                )  # fmt: skip
                features[torch.from_numpy(waiting)] = found
        return features

    def _encoded(self, slots: Any, at: int | None) -> Tensor:
        """A model with a limited context: the last events of each user, encoded together."""
        recent = [self._recent[slot] if slot >= 0 else self._recent[0][:0] for slot in slots.tolist()]
        events = np.concatenate(recent)
        log = replace(
            self._of.log,
            offsets=np.cumsum([0, *map(len, recent)]),
            items=events[:, 0].astype(np.int32),
            times=events[:, 1],
            user_ids=np.arange(len(slots)),
        )
        asked, queries = after_last(log, np.arange(len(slots)), self._items, at=at)
        return ModelScorer(self._of.model, self._context).features(asked, queries)


def _rounds(users: Sequence[User], known: list[bool], most: int) -> list[list[int]]:
    """Events in rounds of at most `most`, in each of which a user has at most one, in order."""
    rounds: list[list[int]] = []
    done: dict[User, int] = {}
    for n, user in enumerate(users):
        if not known[n]:
            continue
        turn = done.get(user, 0)
        while turn < len(rounds) and len(rounds[turn]) == most:
            turn += 1
        done[user] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(n)
    return rounds
