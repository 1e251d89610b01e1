"""Events on disk: SQLite in WAL mode through one connection; what is acknowledged has been flushed to the disk.

One connection, used by one thread at a time: nothing else writes, and no second connection can meet SQLite's errors
of several writers. An event is (tenant, user, sequence number); its id makes it count once. Snapshots of states lie
beside, with a checksum: they may always be thrown away.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from prism.errors import InputError

SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
  tenant TEXT NOT NULL, user TEXT NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL, item TEXT NOT NULL,
  time INTEGER NOT NULL, PRIMARY KEY (tenant, user, seq)) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS events_id ON events (tenant, id);
CREATE TABLE IF NOT EXISTS states (
  tenant TEXT NOT NULL, user TEXT NOT NULL, model TEXT NOT NULL, seq INTEGER NOT NULL, checksum INTEGER NOT NULL,
  state BLOB NOT NULL, PRIMARY KEY (tenant, user)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
  tenant TEXT NOT NULL, item TEXT NOT NULL, available INTEGER NOT NULL, PRIMARY KEY (tenant, item)) WITHOUT ROWID;
"""
VERSION = "1"


class StoreError(Exception):
    """The store cannot be written or read now."""


class User(NamedTuple):
    """Whose events they are; two tenants' users of one id have nothing in common."""

    tenant: str
    id: str


class Event(NamedTuple):
    """One event as it is stored."""

    user: User
    id: str
    item: str
    time: int


class Stored(NamedTuple):
    """What became of an event."""

    seq: int
    """Its number among the user's events, from 1; of a repeated one, the number that it has."""
    new: bool


class Snapshot(NamedTuple):
    """A state after the user's first `seq` events."""

    seq: int
    state: bytes


class SqliteStore:
    """A store in one file. Not for several threads at once: the engine's one thread owns it."""

    def __init__(self, path: Path):
        self.path = path
        self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0)
            db.execute("PRAGMA locking_mode=EXCLUSIVE")  # a second process on this file is refused at once
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA secure_delete=ON")
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            db.executescript(SCHEMA)
            db.execute("INSERT OR IGNORE INTO about VALUES ('version', ?)", (VERSION,))
            version = db.execute("SELECT value FROM about WHERE name = 'version'").fetchone()[0]
        except (sqlite3.Error, OSError) as error:
            if "locked" in str(error):
                raise InputError(f"{self.path} is in use by another process: one service has one store") from None
            raise InputError(f"{self.path} cannot be used ({error}): restore it from a copy, or give another") from None
        if version != VERSION:
            raise InputError(f"{self.path} has version {version} of the store and this prism has {VERSION}")
        return db

    def reopen(self) -> None:
        """After a failure: what the disk holds is what counts, whatever the failed commit did."""
        self.close()
        try:
            self._db = self._open()
        except InputError as error:
            raise StoreError(str(error)) from None

    def close(self) -> None:
        """Lets go of the file."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes of the body or none, on the disk when it ends."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has rolled back by itself
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(str(error)) from None

    def append(self, events: Sequence[Event]) -> list[Stored]:
        """Inside a transaction: adds each event after the user's last; one whose id is known changes nothing."""
        done = []
        for event in events:
            key = (*event.user, event.id, event.item, event.time)
            row = self._db.execute(
                "INSERT INTO events SELECT ?1, ?2, COALESCE((SELECT MAX(seq) FROM events WHERE tenant = ?1 AND "
                "user = ?2), 0) + 1, ?3, ?4, ?5 WHERE NOT EXISTS (SELECT 1 FROM events WHERE tenant = ?1 AND id = ?3) "
                "RETURNING seq",
                key,
            ).fetchone()
            if row is None:
                found = "SELECT seq FROM events WHERE tenant = ? AND id = ?"
                done.append(Stored(self._db.execute(found, (event.user.tenant, event.id)).fetchone()[0], False))
            else:
                done.append(Stored(row[0], True))
        return done

    def events(self, user: User, after: int = 0) -> list[tuple[int, str, int]]:
        """(seq, item, time) of a user's events with a larger seq, in order of time, then of arrival."""
        found = "SELECT seq, item, time FROM events WHERE tenant = ? AND user = ? AND seq > ? ORDER BY time, seq"
        return self._read(found, (*user, after))

    def save_states(self, states: Iterable[tuple[User, str, Snapshot]]) -> None:
        """Inside a transaction: (user, model, snapshot), in place of older ones."""
        rows = [(*user, model, one.seq, zlib.crc32(one.state), one.state) for user, model, one in states]
        self._db.executemany("INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, ?, ?)", rows)

    def drop_states(self, users: Iterable[User]) -> None:
        """Inside a transaction: forgets snapshots that no longer hold."""
        self._db.executemany("DELETE FROM states WHERE tenant = ? AND user = ?", list(users))

    def snapshot(self, user: User, model: str) -> Snapshot | None:
        """The user's state under this model, if there is one and it is whole."""
        found = "SELECT seq, checksum, state FROM states WHERE tenant = ? AND user = ? AND model = ?"
        for seq, checksum, state in self._read(found, (*user, model)):
            if isinstance(state, bytes) and zlib.crc32(state) == checksum:
                return Snapshot(seq, state)
        return None

    def forget(self, user: User) -> int:
        """Inside a transaction: removes everything of a user; how many events those were."""
        self.drop_states([user])
        return self._db.execute("DELETE FROM events WHERE tenant = ? AND user = ?", user).rowcount

    def set_items(self, tenant: str, items: Iterable[tuple[str, bool]]) -> None:
        """Inside a transaction: whether items may be recommended."""
        rows = [(tenant, item, available) for item, available in items]
        self._db.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", rows)

    def unavailable(self, tenant: str) -> list[str]:
        """Items that may not be recommended now."""
        return [item for (item,) in self._read("SELECT item FROM items WHERE tenant = ? AND NOT available", (tenant,))]

    def count(self) -> int:
        """All events."""
        return int(self._read("SELECT COUNT(*) FROM events", ())[0][0])

    def _read(self, query: str, values: tuple[object, ...]) -> list[tuple]:  # type: ignore[type-arg]
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(str(error)) from None
