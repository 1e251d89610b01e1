"""Many live users: their states side by side in one array, events of many users applied in one step.

A user's state never touches another's: a step computes each user alone, in the same order of additions whoever else is
in the batch. All methods may be called from any thread; one lock makes them take turns.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prism.config import at_least, several
from prism.errors import InputError
from prism.recommend.answer.ask import one_history
from prism.recommend.answer.choose import NOTHING, Filter, Recommendation, as_list, best, permitted
from prism.recommend.data.clock import Moment, seconds
from prism.recommend.data.log import Log
from prism.recommend.live.memories import NONE, Memory, memory_of
from prism.recommend.live.placed import Beside, Placed
from prism.recommend.live.user_bytes import UserValue, pack_user, unpack_user
from prism.recommend.model.experts.user_state import UserState, empty_state, state_after, updated
from prism.recommend.trained import Trained

User = Hashable


class SessionPool:
    """The states of at most `capacity` users; beyond that, whoever was idle longest is forgotten.

    A recurrent model's state has a fixed size and lies on the model's device, where a GPU has room for all at once.
    Of one with a limited context, or of a baseline, the last events are kept instead and read on demand.
    """

    def __init__(self, recommender: Trained, capacity: int = 4096, *, evicted: Callable[[User], None] | None = None):
        at_least("capacity", capacity, 1)
        self._of, self.capacity, self._evicted = recommender, capacity, evicted
        self._lock = RLock()
        self._slots: OrderedDict[User, int] = OrderedDict()  # by how long they have been idle
        self._free = list(range(capacity - 1, -1, -1))
        self._counts, self._times = np.zeros(capacity, dtype=np.int64), np.zeros(capacity, dtype=np.int64)
        self._nobody = empty_state(1)
        self._users: list[UserState] = [self._nobody] * capacity
        self._experts, gates = recommender.experts, recommender.model.gates
        self._weights = None if gates is None else gates.arrays()
        self._items = recommender.model.items
        self._memory: Memory = memory_of(recommender, capacity)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, user: User) -> bool:
        return user in self._slots

    @property
    def nbytes(self) -> int:
        mine = sum(part.nbytes for user in self._users if user is not self._nobody for part in user)
        return self._memory.nbytes + mine

    def length(self, user: User) -> int:
        """Events of a user so far; 0 for someone who is not here."""
        with self._lock:
            slot = self._slots.get(user)
            return 0 if slot is None else int(self._counts[slot])

    def latest(self, user: User) -> int:
        """The time of a user's latest event; 0 for someone without any."""
        with self._lock:
            slot = self._slots.get(user)
            return 0 if slot is None else int(self._times[slot])

    def codes(self, items: Sequence[object]) -> Any:
        """[N]: the items' codes, -1 where the model does not know one."""
        codes = self._of.log.item_codes(items).astype(np.int64)
        codes[codes >= self._items] = NONE
        return codes

    def update(
        self, users: Sequence[User], items: Sequence[object], times: Sequence[Moment | None] | None = None
    ) -> list[bool]:
        """Takes in one event each, in order; a user may have several. False where the model does not know the item.

        Someone who is not here yet begins without events. Times are as in `Session.update`; without one an event
        happens when the last one did.
        """
        several("users", users)
        several("items", items)
        given = [None] * len(users) if times is None else times
        when = [None if time is None else seconds(time) for time in given]
        if not len(users) == len(items) == len(when):
            raise InputError(f"{len(users)} users, {len(items)} items and {len(when)} times: give one each")
        codes = self.codes(items)
        self.take(users, codes, when)
        return (codes >= 0).tolist()  # type: ignore[no-any-return]

    def take(self, users: Sequence[User], codes: Any, when: Sequence[int | None]) -> None:
        """`update` by `codes`; what is not known is passed over. A time before the user's latest is refused."""
        with self._lock:
            self._refuse_late(users, codes, when)
            for events in _rounds(users, codes.tolist(), self.capacity):
                theirs = [users[n] for n in events]
                self.touch(theirs)
                slots = np.array([self._slot(user) for user in theirs])
                self._take(slots, codes[events], [when[n] for n in events])

    def touch(self, users: Iterable[User]) -> None:
        """Those of them who are here are not idle: whoever makes room for others, it is none of them."""
        with self._lock:
            for user in users:
                if user in self._slots:
                    self._slots.move_to_end(user)

    def _refuse_late(self, users: Sequence[User], codes: Any, when: Sequence[int | None]) -> None:
        """Before anything is changed."""
        latest: dict[User, int] = {}
        for user, code, time in zip(users, codes.tolist(), when, strict=True):
            if time is None or code < 0:
                continue
            slot = self._slots.get(user)
            known = slot is not None and self._counts[slot] > 0
            before = latest.get(user, int(self._times[slot]) if known else None)
            if before is not None and time < before:
                whose = "" if user is None else f" of user {user!r}"
                raise InputError(
                    f"time {time}{whose} is before the last event's, {before}: give events in the order of time"
                )
            latest[user] = time

    def recommend(
        self,
        users: Sequence[User],
        k: int = 10,
        *,
        exclude_seen: bool | None = None,
        allow: Filter | None = None,
        deny: Filter | None = None,
        at: Moment | None = None,
    ) -> list[list[Recommendation]]:
        """The k best items of each user, best first; see `Recommender.recommend`. Users who are not here are new."""
        several("users", users)
        mask = permitted(self._of.log, self._items, allow, deny)
        scores, codes = self.best(users, k, mask, exclude_seen, None if at is None else seconds(at))
        return [as_list(self._of.log, row, items) for row, items in zip(scores, codes, strict=True)]

    @torch.inference_mode()
    def best(
        self,
        users: Sequence[User],
        k: int,
        mask: Tensor,
        exclude_seen: bool | None = None,
        at: int | None = None,
        beside: Beside | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(scores, codes) [N, k] of `recommend`, among the items that `mask` permits; it has those `beside` too."""
        with self._lock:
            slots = np.array([self._slots.get(user, NONE) for user in users], dtype=np.int64)
            self.touch(users)
            theirs = [self._users[slot] if slot >= 0 else self._nobody for slot in slots.tolist()]
            scores = self._scores(slots, theirs, at, None if beside is None else beside.placed)
            gone = None
            if self._of.excludes_seen if exclude_seen is None else exclude_seen:
                taken = [user.taken for user in theirs]
                if beside is not None:
                    pairs = zip(taken, beside.taken, strict=True)
                    taken = [np.append(codes, np.array(more, dtype=np.int64)) for codes, more in pairs]
                gone = np.repeat(np.arange(len(users)), list(map(len, taken))), np.concatenate([NOTHING, *taken])
        return best(scores, mask, gone, k)

    def state(self, user: User) -> bytes:
        """All that is remembered of one user, and nothing of anyone else; for `restore`, here or elsewhere."""
        with self._lock:
            slot = self._slots.get(user)
            if slot is None:
                raise InputError(f"user {user!r} is not in the pool")
            arrays, pending = self._memory.row(slot)
            facts = np.array([self._counts[slot], self._times[slot], *pending])
            return pack_user(UserValue(arrays=arrays, user=self._users[slot], facts=facts), self._of)

    def restore(self, user: User, state: bytes) -> None:
        """Puts a user's state, as `state` gave it, in place of what is here."""
        self._put(user, unpack_user(state, self._of))

    def load(self, user: User, items: Sequence[object], times: Sequence[int] | None = None) -> None:
        """Begins a user anew with a whole history, oldest first."""
        self.begin(user, one_history(self._of.log, self._items, None, list(items), times))

    def begin(self, user: User, history: Log) -> None:
        """Begins a user anew with the events of a log of one, encoded at once."""
        known = history.items < self._items
        codes, times = history.items[known], history.times[known]
        arrays, pending = self._memory.encode(codes, times) if len(codes) else ([], [NONE, NONE])
        facts = np.array([len(codes), times[-1] if len(codes) else 0, *pending])
        self._put(user, UserValue(arrays=arrays, user=state_after(codes, times), facts=facts))

    def _put(self, user: User, value: UserValue) -> None:
        with self._lock:
            slot = self._slot(user)
            self._clear(slot)
            self._counts[slot], self._times[slot], *pending = value.facts.tolist()
            self._memory.put(slot, value.arrays, pending)
            self._users[slot] = value.user

    def drop(self, user: User) -> bool:
        """Forgets a user; whether there was one."""
        with self._lock:
            slot = self._slots.pop(user, None)
            if slot is None:
                return False
            self._clear(slot)
            self._users[slot] = self._nobody
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
            self._clear(slot)
        self._slots.move_to_end(user)
        return slot

    def _clear(self, slot: int) -> None:
        self._users[slot] = empty_state()
        self._counts[slot] = self._times[slot] = 0
        self._memory.clear(slot)

    def _take(self, slots: Any, codes: Any, when: list[int | None]) -> None:
        """One event of each of these slots, all different."""
        before = self._times[slots]
        now = np.array([time if given is None else given for time, given in zip(before.tolist(), when, strict=True)])
        since = np.where(self._counts[slots] > 0, now - before, NONE)
        self._memory.take(slots, codes, before, since, now)
        self._times[slots] = now
        self._counts[slots] += 1
        for slot, code, time in zip(slots.tolist(), codes.tolist(), now.tolist(), strict=True):
            self._users[slot] = updated(self._users[slot], code, time)

    def _scores(self, slots: Any, users: list[UserState], at: int | None, placed: Placed | None) -> Tensor:
        features = self._memory.features(slots, self._times[slots], at)
        scores = self._memory.scores(features)
        if self._experts is not None and self._weights is not None:
            found = scores.cpu().numpy()
            self._experts.add_live(found, features.cpu().numpy(), self._weights, users, at)
            scores = torch.from_numpy(found).log_softmax(1)
        if placed is None:
            return scores
        whole = placed.beside(scores, [user.taken for user in users])
        return whole if self._experts is None else whole.log_softmax(1)


def _rounds(users: Sequence[User], codes: list[int], most: int) -> list[list[int]]:
    """Known events in rounds of at most `most`, in each of which a user has at most one, in order."""
    rounds: list[list[int]] = []
    done: dict[User, int] = {}
    for n, user in enumerate(users):
        if codes[n] < 0:
            continue
        turn = done.get(user, 0)
        while turn < len(rounds) and len(rounds[turn]) == most:
            turn += 1
        done[user] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(n)
    return rounds
