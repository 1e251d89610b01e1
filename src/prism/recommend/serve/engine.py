"""The service's one thread of work: requests that wait are taken together: one commit, one step of the model.

In each round the new events are committed to the disk first and applied to the states after that, in one batched step;
then all questions are answered in one. So an acknowledged event is on the disk, and a state is never ahead of it. A
state is a cache of (user, model, sequence number): it is built from a snapshot and the events after it, or from all.
"""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from prism.config import at_least
from prism.errors import InputError
from prism.recommend.choose import Recommendation, as_list, permitted
from prism.recommend.pool import SessionPool
from prism.recommend.recommender import Recommender
from prism.recommend.serve.store import Event, Snapshot, SqliteStore, Stored, StoreError, User

log = logging.getLogger("prism.serve")


@dataclass(frozen=True)
class Question:
    """Recommendations for one user."""

    user: User
    k: int = 10
    exclude_seen: bool | None = None
    mask: torch.Tensor | None = None
    """Which items the request permits; None: all."""
    at: int | None = None


@dataclass(frozen=True)
class Ask:
    """One request: events to take in, then questions to answer; or any other work on the store (`call`)."""

    events: Sequence[Event] = ()
    questions: Sequence[Question] = ()
    call: Any = None
    answer: Future[Any] = field(default_factory=Future)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of the events, and the recommendations of each question."""

    events: list[Stored]
    known: list[bool]
    """Whether the model knows each event's item."""
    found: list[list[Recommendation]]


# Events, and questions, of one request.
MOST_EVENTS = 1000


class Busy(Exception):
    """More requests wait than are accepted."""


class Engine:
    """Owns the store, the model and the states of the users who were active last."""

    def __init__(
        self,
        recommender: Recommender,
        store: SqliteStore,
        *,
        capacity: int = 20_000,
        snapshot_every: int = 64,
        gather: float = 0.0003,
        waiting: int = 4096,
    ):
        at_least("capacity", capacity, 2 * MOST_EVENTS)
        self.store, self.snapshot_every, self.gather = store, snapshot_every, gather
        self._capacity = capacity
        self._queue: queue.Queue[Ask | None] = queue.Queue(waiting)
        self._seq: dict[User, int] = {}
        self._masks: dict[str, torch.Tensor] = {}
        self._cold: list[User] = []
        self.failure: str | None = None
        """Why the store does not take writes now."""
        self.rebuilt = 0
        """States that were built from events, for want of a snapshot."""
        self._use(recommender)
        self._thread = threading.Thread(target=self._work, name="prism-engine", daemon=True)
        self._thread.start()

    def _use(self, recommender: Recommender) -> None:
        before = list(self._seq)
        self.recommender, self.since = recommender, int(time.time())
        self.pool = SessionPool(recommender, self._capacity, evicted=lambda user: self._seq.pop(user, None))  # type: ignore[call-overload]
        self._seq.clear()
        self._masks.clear()
        self._cold = before[::-1]  # whoever was active last is rebuilt first

    def ask(self, ask: Ask) -> Future[Any]:
        """Puts a request in the line."""
        try:
            self._queue.put_nowait(ask)
        except queue.Full:
            raise Busy from None
        return ask.answer

    @property
    def waiting(self) -> int:
        """Requests in the line."""
        return self._queue.qsize()

    def swap(self, recommender: Recommender) -> Future[Any]:
        """Answers with another model from the next round on; users' states are rebuilt when asked for, or when idle."""
        return self.ask(Ask(call=lambda: self._use(recommender)))

    def stop(self) -> None:
        """Finishes what waits, then closes the store."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            batch = self._next()
            if batch is None:
                break
            try:
                self._round(batch)
            except Exception as error:  # a request must not end the service
                log.exception("a round failed")
                self._recover(batch, error)
        self.store.close()

    def _next(self) -> list[Ask] | None:
        """All requests that wait, and those that come within the time to gather; None at the end."""
        while True:
            try:
                first = self._queue.get(timeout=0.02 if self._cold else 1.0)
                break
            except queue.Empty:
                self._warm()
        batch, until = [first], time.monotonic() + self.gather
        # every user of a round must find room in the pool
        while batch[-1] is not None and sum(map(_users, batch)) < self._capacity // 2:
            left = until - time.monotonic()
            try:
                batch.append(self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait())
            except queue.Empty:
                break
        if batch[-1] is None:
            self._queue.put(None)
            batch.pop()
        return [ask for ask in batch if ask is not None] or None

    def _warm(self) -> None:
        """While nobody asks: rebuilds a few users' states after a swap of models."""
        try:
            for _ in range(min(8, len(self._cold))):
                self._load(self._cold.pop())
        except StoreError as error:
            self.failure = str(error)

    def _round(self, batch: list[Ask]) -> None:
        batch = [ask for ask in batch if ask.answer.set_running_or_notify_cancel()]
        for ask in batch:
            if ask.call is not None:
                self._call(ask)
        rest = [ask for ask in batch if ask.call is None]
        if not rest:
            return
        for user in {event.user for ask in rest for event in ask.events} | {
            q.user for ask in rest for q in ask.questions
        }:
            self._load(user)
        stored = self._commit([event for ask in rest for event in ask.events])
        for ask in rest:
            for question in ask.questions:
                self._load(question.user)  # a late event sent the state back to the events
        found = iter(self._answer([question for ask in rest for question in ask.questions]))
        at = 0
        for ask in rest:
            part, at = stored[at : at + len(ask.events)], at + len(ask.events)
            answer = Answer(
                events=[one for one, _ in part],
                known=[known for _, known in part],
                found=[next(found) for _ in ask.questions],
            )
            ask.answer.set_result(answer)

    def _call(self, ask: Ask) -> None:
        try:
            ask.answer.set_result(ask.call())
        except StoreError as error:
            self._failed(error)
            ask.answer.set_exception(error)
        except Exception as error:
            ask.answer.set_exception(error)

    def _commit(self, events: list[Event]) -> list[tuple[Stored, bool]]:
        """Stores events, then applies the new ones; late ones send their user's state back to the events."""
        if not events:
            return []
        with self.store.transaction():
            stored = self.store.append(events)
            new = [event for event, one in zip(events, stored, strict=True) if one.new]
            late = self._late(new)
            self.store.drop_states(late)
        self.failure = None
        for user in late:
            self.pool.drop(user)
            self._seq.pop(user, None)
        fresh = [event for event in new if event.user not in late]
        known = self.pool.update(
            [event.user for event in fresh], [event.item for event in fresh], [event.time for event in fresh]
        )
        taken = dict(zip((event.id for event in fresh), known, strict=True))
        numbers = {event.id: one.seq for event, one in zip(events, stored, strict=True)}
        for event in fresh:
            self._seq[event.user] = numbers[event.id]
        self._snapshots({event.user for event in fresh})
        items = self.recommender.log.item_codes([event.item for event in events]).tolist()
        return [
            (one, taken.get(event.id, 0 <= code < self.recommender.model.items))
            for event, one, code in zip(events, stored, items, strict=True)
        ]

    def _late(self, events: list[Event]) -> set[User]:
        """Users with an event older than one that their state holds."""
        late: set[User] = set()
        latest: dict[User, int] = {}
        for event in events:
            if event.time < latest.get(event.user, self.pool.latest(event.user)):
                late.add(event.user)
            latest[event.user] = event.time
        return late

    def _snapshots(self, users: set[User]) -> None:
        due = [user for user in users if self._seq.get(user, 1) % self.snapshot_every == 0 and user in self.pool]
        if due:
            key = self.recommender.key
            with self.store.transaction():
                self.store.save_states((user, key, Snapshot(self._seq[user], self.pool.state(user))) for user in due)

    def _load(self, user: User) -> None:
        """The user's state in the pool, from the newest snapshot and the events after it."""
        if user in self._seq and user in self.pool:
            return
        snapshot = self.store.snapshot(user, self.recommender.key)
        if snapshot is not None:
            try:
                self.pool.restore(user, snapshot.state)
            except InputError:
                snapshot = None
        if snapshot is None:
            self.pool.drop(user)
        events = self.store.events(user, 0 if snapshot is None else snapshot.seq)
        self.rebuilt += snapshot is None and bool(events)
        if snapshot is None and len(events) > 32:
            self._encode(user, events)
        elif events:
            self.pool.update([user] * len(events), [item for _, item, _ in events], [when for _, _, when in events])
        if events or snapshot is not None:
            self._seq[user] = max([seq for seq, _, _ in events], default=0 if snapshot is None else snapshot.seq)

    def _encode(self, user: User, events: list[tuple[int, str, int]]) -> None:
        """A long history at once; the last events one by one, as they would have come."""
        model = self.recommender
        codes = model.log.item_codes([item for _, item, _ in events])
        known = [event for event, code in zip(events, codes.tolist(), strict=True) if 0 <= code < model.model.items]
        self.pool.load(user, [item for _, item, _ in known], [when for _, _, when in known])

    def _answer(self, questions: list[Question]) -> list[list[Recommendation]]:
        """Questions of the same kind are answered in one step."""
        found: list[list[Recommendation]] = [[] for _ in questions]
        groups: dict[Any, list[int]] = {}
        for n, one in enumerate(questions):
            kind = (one.user.tenant, one.k, one.exclude_seen, None if one.mask is None else n, one.at)
            groups.setdefault(kind, []).append(n)
        for members in groups.values():
            one = questions[members[0]]
            mask = self._mask(one.user.tenant)
            if one.mask is not None and len(one.mask) == len(mask):  # else the model was swapped meanwhile
                mask = mask & one.mask
            users = [questions[n].user for n in members]
            scores, codes = self.pool.best(users, one.k, mask, one.exclude_seen, one.at)
            for n, row, items in zip(members, scores, codes, strict=True):
                found[n] = as_list(self.recommender.log, row, items)
        return found

    def _mask(self, tenant: str) -> torch.Tensor:
        if tenant not in self._masks:
            gone = self.store.unavailable(tenant)
            self._masks[tenant] = permitted(self.recommender.log, self.recommender.model.items, None, gone)
        return self._masks[tenant]

    def set_items(self, tenant: str, items: list[tuple[str, bool]]) -> list[bool]:
        """Whether items may be recommended; gives which of them the model knows. To be called by the engine."""
        with self.store.transaction():
            self.store.set_items(tenant, items)
        self._masks.pop(tenant, None)
        codes = self.recommender.log.item_codes([item for item, _ in items]).tolist()
        return [0 <= code < self.recommender.model.items for code in codes]

    def describe(self, user: User) -> dict[str, Any] | None:
        """Events of a user; to be called by the engine."""
        self._load(user)
        events = self.store.events(user)
        if not events:
            return None
        return {
            "events": len(events),
            "first": events[0][2],
            "latest": events[-1][2],
            "state_bytes": len(self.pool.state(user)) if user in self.pool else 0,
            "history": [item for _, item, _ in events[-100:]],
        }

    def forget(self, user: User) -> int:
        """Removes a user's events and state; to be called by the engine."""
        with self.store.transaction():
            count = self.store.forget(user)
        self.pool.drop(user)
        self._seq.pop(user, None)
        return count

    def _recover(self, batch: list[Ask], error: Exception) -> None:
        """Tells everyone, and goes back to what the disk holds."""
        self._failed(error)
        for ask in batch:
            if not ask.answer.done():
                said = error if isinstance(error, StoreError | InputError) else RuntimeError("the request failed")
                ask.answer.set_exception(said)

    def _failed(self, error: Exception) -> None:
        """Every state goes back to the events: whatever failed may have stood between a commit and its state."""
        for user in list(self._seq):
            self.pool.drop(user)
        self._seq.clear()
        self._masks.clear()
        if not isinstance(error, StoreError):
            return
        self.failure = str(error)
        try:
            self.store.reopen()
        except StoreError as again:
            self.failure = str(again)


def _users(ask: Ask | None) -> int:
    return 0 if ask is None else len(ask.events) + len(ask.questions)
