"""The states of the users who were active last: a cache of (user, model, version), always made from the store's events.

A state is built from the newest snapshot and the events after it; from all events, if there is no snapshot or an event
came late, before one that the snapshot holds. If others write to the store too, a state is used only while its version
is the store's.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from prism.errors import InputError
from prism.recommend.live.pool import SessionPool
from prism.recommend.recommender import Recommender
from prism.recommend.serve.catalogue import Shelf
from prism.recommend.serve.stores.base import NOBODY, Event, Kept, Snapshot, Store, Stored, User, Version

# Events from which a history is encoded at once, not one by one.
LONG = 32


class States:
    """States under one model; used by the engine's thread alone."""

    def __init__(self, recommender: Recommender, store: Store, capacity: int, snapshot_every: int):
        self.model, self.store, self.every = recommender, store, snapshot_every
        self.shelf = Shelf(recommender)
        self.pool = SessionPool(recommender, capacity, evicted=self._evicted)
        self._versions: dict[User, Version] = {}
        self._due: set[User] = set()
        self._unknown: dict[User, set[str]] = {}
        self.rebuilt = 0
        """States that were built from all events, for want of a snapshot."""

    def __contains__(self, user: User) -> bool:
        return user in self._versions

    def _evicted(self, user: Any) -> None:
        self._versions.pop(user, None)
        self._unknown.pop(user, None)
        self._due.discard(user)

    def users(self) -> list[User]:
        """Those in memory, by how long ago they were loaded."""
        return list(self._versions)

    def drop(self, users: Iterable[User]) -> None:
        """Their states go back to the store."""
        for user in list(users):
            self.pool.drop(user)
            self._evicted(user)

    def load(self, users: Sequence[User]) -> None:
        """Makes sure that the states of these users, all different, hold what the store does.

        None of them makes room for another: there must be room for all.
        """
        self.pool.touch(users)
        if self.store.exclusive:
            missing = [user for user in users if user not in self._versions]
        else:
            newest = self.store.versions(users)
            missing = [u for u, now in zip(users, newest, strict=True) if self._versions.get(u, NOBODY) != now]
            self.drop(missing)
        if missing:
            self._build(missing)

    def _build(self, users: Sequence[User]) -> None:
        kept = self.store.snapshots(users, self.model.key)
        snapshots = [self._restored(user, one) for user, one in zip(users, kept, strict=True)]
        events = self.store.events(users, [0 if one is None else one.version.seq for one in snapshots])
        rebuild = []
        for n, (user, snapshot, later) in enumerate(zip(users, snapshots, events, strict=True)):
            if snapshot is not None and later and later[0].time < snapshot.time:
                self.pool.drop(user)
                snapshots[n] = None
                rebuild.append(n)
        again = self.store.events([users[n] for n in rebuild], [0] * len(rebuild)) if rebuild else []
        for n, whole in zip(rebuild, again, strict=True):
            events[n] = whole
        tails: list[tuple[User, Kept]] = []
        for user, snapshot, later in zip(users, snapshots, events, strict=True):
            self.rebuilt += snapshot is None and bool(later)
            if snapshot is None and len(later) > LONG:
                self._encode(user, later)
            else:
                tails += [(user, event) for event in later]
        if tails:
            codes = self.pool.codes([event.item for _, event in tails])
            self.pool.take([user for user, _ in tails], codes, [event.time for _, event in tails])
        for user, snapshot, later in zip(users, snapshots, events, strict=True):
            before = NOBODY if snapshot is None else snapshot.version
            self._reached(user, max((Version(event.seq, event.id) for event in later), default=before))

    def _reached(self, user: User, version: Version) -> None:
        if user in self.pool:  # not there: the model knows none of the user's items
            self._versions[user] = version

    def _restored(self, user: User, snapshot: Snapshot | None) -> Snapshot | None:
        if snapshot is not None:
            try:
                self.pool.restore(user, snapshot.state)
                return snapshot
            except InputError:  # damaged, or of another form: the events have it all
                pass
        self.pool.drop(user)
        return None

    def _encode(self, user: User, events: list[Kept]) -> None:
        """A long history at once."""
        codes = self.pool.codes([event.item for event in events])
        known = [event for event, code in zip(events, codes.tolist(), strict=True) if code >= 0]
        self.pool.load(user, [event.item for event in known], [event.time for event in known])

    def unknown(self, user: User) -> set[str]:
        """The items that a user took and the model does not know: no state has them."""
        if user not in self._unknown:
            events = self.store.events([user], [0])[0]
            codes = self.pool.codes([event.item for event in events]).tolist()
            found = {event.item for event, code in zip(events, codes, strict=True) if code < 0}
            if user not in self._versions:  # nothing would keep it up to date
                return found
            self._unknown[user] = found
        return self._unknown[user]

    def apply(self, events: Sequence[Event], stored: Sequence[Stored]) -> list[bool]:
        """Takes in what the store has just taken; whether the model knows each item.

        A state that an event comes too late for, or that has missed one, goes back to the store.
        """
        codes = self.pool.codes([event.item for event in events])
        stale = self._stale(events, stored)
        self.drop(stale)
        pairs = zip(events, stored, strict=True)
        fresh = [n for n, (event, one) in enumerate(pairs) if one.new and event.user not in stale]
        chosen = [events[n] for n in fresh]
        self.pool.take([event.user for event in chosen], codes[fresh], [event.time for event in chosen])
        for n, event in zip(fresh, chosen, strict=True):
            if codes[n] < 0 and event.user in self._unknown:
                self._unknown[event.user].add(event.item)
            before, seq = self._versions.get(event.user, NOBODY), stored[n].seq
            self._reached(event.user, Version(seq, event.id))
            if before.seq // self.every != seq // self.every:
                self._due.add(event.user)
        return (codes >= 0).tolist()  # type: ignore[no-any-return]

    def _stale(self, events: Sequence[Event], stored: Sequence[Stored]) -> set[User]:
        stale: set[User] = set()
        reached: dict[User, tuple[int, int]] = {}
        for event, one in zip(events, stored, strict=True):
            if not one.new:
                continue
            user = event.user
            seq, time = reached.get(user) or (self._versions.get(user, NOBODY).seq, self.pool.latest(user))
            if event.time < time or one.seq != seq + 1:
                stale.add(user)
            reached[user] = one.seq, max(event.time, time)
        return stale

    def snapshot(self) -> None:
        """Stores the states that have taken in enough events since the last time."""
        due = [user for user in self._due if user in self._versions]
        self._due.clear()
        if due:
            found = [
                (user, Snapshot(self._versions[user], self.pool.latest(user), self.pool.state(user))) for user in due
            ]
            self.store.save(self.model.key, found)
