"""The service's one thread of work: requests that wait are taken together: one commit, one step of the model.

In each round the new events are committed to the disk first and applied to the states after that, in one batched step;
then all questions are answered in one. So an acknowledged event is on the disk, and a state is never ahead of it.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prism.config import at_least
from prism.errors import InputError
from prism.recommend.live.placed import Beside
from prism.recommend.recommender import Recommender
from prism.recommend.serve.catalogue import Catalogue
from prism.recommend.serve.catalogues import Catalogues, Ready
from prism.recommend.serve.labels import Found
from prism.recommend.serve.requests import MOST_EVENTS, Answer, Ask, Busy, Outcome, Question, deliver
from prism.recommend.serve.states import States
from prism.recommend.serve.stores.base import Item, Store, StoreError, User

log = logging.getLogger("prism.serve")
# Seconds between two tries of a store that failed.
RETRY_SECONDS = 1.0


class Engine:
    """Owns the store, the model and the states of the users who were active last."""

    def __init__(
        self,
        recommender: Recommender,
        store: Store,
        *,
        capacity: int = 20_000,
        snapshot_every: int = 64,
        gather: float = 0.0002,
        waiting: int = 4096,
    ):
        at_least("capacity", capacity, 2 * MOST_EVENTS)
        at_least("snapshot_every", snapshot_every, 1)
        self.store, self.gather, self._most = store, gather, waiting
        self._capacity, self._every = capacity, snapshot_every
        self._queue: queue.SimpleQueue[Ask | None] = queue.SimpleQueue()
        self._cold: list[User] = []
        self.catalogues = Catalogues(store)
        self.failure: str | None = None
        """Why the store does not take writes now."""
        self.states = self.prepare(recommender)
        self.since = int(time.time())
        """When the model began to answer."""
        self._thread = threading.Thread(target=self._work, name="prism-engine", daemon=True)
        self._thread.start()

    def prepare(self, recommender: Recommender) -> States:
        """Room for the states of another model; in any thread."""
        return States(recommender, self.store, self._capacity, self._every)

    def use(self, states: States) -> None:
        """Answers with this model from now on; users' states are rebuilt when asked for, or when idle.

        To be called by the engine.
        """
        self._cold = self.states.users()  # whoever came last is rebuilt first
        self.states, self.since = states, int(time.time())
        self.catalogues.clear()

    @property
    def recommender(self) -> Recommender:
        return self.states.model

    @property
    def rebuilt(self) -> int:
        """States that were built from all events, for want of a snapshot."""
        return self.states.rebuilt

    @property
    def pool(self) -> Any:
        return self.states.pool

    def ask(self, ask: Ask) -> Any:
        """Puts a request in the line; its answer is a future of its event loop, or of threads if it has none."""
        if self._queue.qsize() >= self._most:
            raise Busy
        self._queue.put(ask)
        return ask.answer

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

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
                self._recover(batch, error)
        self.store.close()

    def _next(self) -> list[Ask] | None:
        """All requests that wait, and those that come within the time to gather; None at the end."""
        while True:
            try:
                first = self._queue.get(timeout=0.02 if self._cold else RETRY_SECONDS)
                break
            except queue.Empty:
                self._idle()
        batch, size, until = [first], 0 if first is None else first.size, time.monotonic() + self.gather
        # every user of a round must find room in the pool
        while batch[-1] is not None and size < self._capacity // 2:
            left = until - time.monotonic()
            try:
                ask = self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            batch.append(ask)
            size += 0 if ask is None else ask.size
        if batch[-1] is None:
            self._queue.put(None)
            batch.pop()
        return [ask for ask in batch if ask is not None] or None

    def _idle(self) -> None:
        """While nobody asks: tries a store that failed, and rebuilds a few states after a change of models."""
        try:
            if self.failure is not None:
                self.store.reopen()
                self.failure = None
            some = [self._cold.pop() for _ in range(min(8, len(self._cold)))]
            self.states.load([user for user in some if user not in self.states])
        except StoreError as error:
            self.failure = str(error)
        except Exception:  # whoever is asked for is rebuilt then
            log.exception("users could not be rebuilt")
            self._cold.clear()

    def _round(self, batch: list[Ask]) -> None:
        batch = [ask for ask in batch if not ask.answer.cancelled()]
        for ask in batch:
            if ask.call is not None:
                self._call(ask)
        rest = [ask for ask in batch if ask.call is None]
        if not rest:
            return
        events = [event for ask in rest for event in ask.events]
        questions = [question for ask in rest for question in ask.questions]
        users = [event.user for event in events] + [question.user for question in questions]
        self.states.load(list(dict.fromkeys(users)))
        stored = self.store.append(events) if events else []
        known = self.states.apply(events, stored) if events else []
        # a late event sent its user's state back to the store
        lost = {question.user: None for question in questions if question.user not in self.states}
        if events and lost:
            self.states.load(list(lost))
        catalogues = {tenant: self.catalogue(tenant) for tenant in {one.user.tenant for one in questions}}
        found = self._answer(questions, catalogues)
        if events:
            self.failure = None
        done: list[Outcome] = []
        a = b = 0
        for ask in rest:
            c, d = a + len(ask.events), b + len(ask.questions)
            asked = ask.questions
            labels = catalogues[asked[0].user.tenant].labels if asked else self.states.shelf.labels
            done.append((ask, Answer(stored[a:c], known[a:c], found[b:d], labels), None))
            a, b = c, d
        deliver(done)
        self.states.snapshot()

    def _call(self, ask: Ask) -> None:
        assert ask.call is not None
        try:
            deliver([(ask, ask.call(), None)])
        except Exception as error:
            if isinstance(error, StoreError):
                self._failed(error)
            deliver([(ask, None, error)])

    def _answer(self, questions: list[Question], catalogues: Mapping[str, Catalogue]) -> list[Found]:
        """Questions of the same kind are answered in one step."""
        found: list[Found] = [Found([], [])] * len(questions)
        groups: dict[Any, list[int]] = {}
        for n, one in enumerate(questions):
            kind = (one.user.tenant, one.k, one.exclude_seen, id(one.wanted), one.at)
            groups.setdefault(kind, []).append(n)
        for members in groups.values():
            one = questions[members[0]]
            catalogue = catalogues[one.user.tenant]
            mask = catalogue.mask
            if one.wanted is not None:
                mask = mask & one.wanted.of(catalogue)
            users = [questions[n].user for n in members]
            beside = None if catalogue.placed is None else self._beside(catalogue, users)
            scores, codes = self.pool.best(users, one.k, mask, one.exclude_seen, one.at, beside)
            for n, row, items in zip(members, scores.tolist(), codes.tolist(), strict=True):
                found[n] = Found(row, items)
        return found

    def _beside(self, catalogue: Catalogue, users: Sequence[User]) -> Beside:
        assert catalogue.placed is not None
        new = catalogue.new
        taken = [[new[item] for item in self.states.unknown(user) if item in new] for user in users]
        return Beside(catalogue.placed, taken)

    def catalogue(self, tenant: str) -> Catalogue:
        """A tenant's items now. To be called by the engine."""
        return self.catalogues.of(tenant, self.states.shelf)

    def change_items(self, tenant: str, changes: Sequence[Item], ready: Ready | None = None) -> Catalogue:
        """Keeps what a tenant tells of items, all different. To be called by the engine."""
        return self.catalogues.change(tenant, self.states.shelf, changes, ready)

    def describe(self, user: User) -> dict[str, Any] | None:
        """Events of a user; to be called by the engine."""
        self.states.load([user])
        events = self.store.events([user], [0])[0]
        if not events:
            return None
        items = self.catalogue(user.tenant)
        return {
            "events": len(events),
            "first": events[0].time,
            "latest": events[-1].time,
            "age": max(0, int(time.time()) - events[-1].time),
            "state_bytes": len(self.pool.state(user)) if user in self.pool else 0,
            "history": [{"item": one.item, "name": items.name(one.item), "time": one.time} for one in events[-100:]],
        }

    def forget(self, user: User) -> int:
        """Removes a user's events and state; to be called by the engine."""
        count = self.store.forget(user)
        self.states.drop([user])
        return count

    def warm(self, tenants: Iterable[str] = ()) -> None:
        """Runs what a first request would have to compile, and makes the tenants' catalogues."""
        user, item = User("", ""), str(self.recommender.log.item_ids[0])

        def work() -> None:
            self.pool.update([user], [item], [0])
            self._answer([Question(user)], {"": self.catalogue("")})
            self.states.drop([user])
            for tenant in tenants:
                self.catalogue(tenant)

        self.ask(Ask(call=work)).result()

    def _recover(self, batch: list[Ask], error: Exception) -> None:
        """Answers every request of the batch with the error, and goes back to what the disk holds."""
        if not isinstance(error, StoreError):
            log.exception("a round failed")
        self._failed(error)
        shown = error if isinstance(error, StoreError | InputError) else RuntimeError("the request failed")
        deliver([(ask, None, shown) for ask in batch])

    def _failed(self, error: Exception) -> None:
        """Every state goes back to the store: whatever failed may have stood between a commit and its state."""
        self.states.drop(self.states.users())
        self.catalogues.clear()
        if not isinstance(error, StoreError):
            return
        self.failure = str(error)
        log.warning("the store failed: %s", error)
        try:
            self.store.reopen()
        except StoreError as again:
            self.failure = str(again)
