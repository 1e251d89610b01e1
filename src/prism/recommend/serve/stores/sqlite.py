"""Events in a file: SQLite in WAL mode through one connection; what is acknowledged has been flushed to the disk.

One connection, used by one thread at a time: nothing else writes, and no second connection can meet SQLite's errors
of several writers. Snapshots of states lie beside the events, with a checksum.
"""

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from prism.errors import InputError
from prism.recommend.serve.stores.base import (
    NOBODY,
    Event,
    Item,
    Kept,
    Snapshot,
    Store,
    Stored,
    StoreError,
    User,
    Version,
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
  tenant TEXT NOT NULL, user TEXT NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL, item TEXT NOT NULL,
  time INTEGER NOT NULL, PRIMARY KEY (tenant, user, seq)) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS events_id ON events (tenant, id);
CREATE TABLE IF NOT EXISTS snapshots (
  tenant TEXT NOT NULL, user TEXT NOT NULL, model TEXT NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL,
  time INTEGER NOT NULL, checksum INTEGER NOT NULL, state BLOB NOT NULL, PRIMARY KEY (tenant, user)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
  tenant TEXT NOT NULL, item TEXT NOT NULL, available INTEGER NOT NULL, name TEXT, features TEXT,
  PRIMARY KEY (tenant, item)) WITHOUT ROWID;
"""
VERSION = "2"
# from version 1, in which items had neither
UPGRADE = """
BEGIN IMMEDIATE;
ALTER TABLE items ADD COLUMN name TEXT;
ALTER TABLE items ADD COLUMN features TEXT;
UPDATE about SET value = '2' WHERE name = 'version';
COMMIT;
"""
APPEND = """
INSERT INTO events SELECT ?1, ?2, COALESCE((SELECT MAX(seq) FROM events WHERE tenant = ?1 AND user = ?2), 0) + 1,
  ?3, ?4, ?5 WHERE NOT EXISTS (SELECT 1 FROM events WHERE tenant = ?1 AND id = ?3) RETURNING seq
"""
SAVE = """
INSERT OR REPLACE INTO snapshots SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
  WHERE EXISTS (SELECT 1 FROM events WHERE tenant = ?1 AND user = ?2 AND seq = ?4 AND id = ?5)
"""
SET_ITEM = """
INSERT INTO items VALUES (?1, ?2, COALESCE(?3, 1), ?4, ?5) ON CONFLICT (tenant, item) DO UPDATE SET
  available = COALESCE(?3, available), name = COALESCE(?4, name), features = COALESCE(?5, features)
"""


class SqliteStore(Store):
    """A store in one file. Not for several threads at once: the engine's one thread owns it."""

    exclusive = True

    def __init__(self, path: Path):
        self.path = path
        self._db = self._open(checked=True)

    def _open(self, checked: bool = False) -> sqlite3.Connection:
        """The file, `checked` from end to end: that takes as long as reading it."""
        db = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # people's events: the owner's alone
            db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0)
            db.execute("PRAGMA locking_mode=EXCLUSIVE")  # a second process on this file is refused at once
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA secure_delete=ON")
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0] if checked else "ok"
            if found != "ok":
                raise sqlite3.DatabaseError(" ".join(found.split()))
            db.executescript(SCHEMA)
            db.execute("INSERT OR IGNORE INTO about VALUES ('version', ?)", (VERSION,))
            db.execute("DROP TABLE IF EXISTS states")  # snapshots as they were before they told their last event
            found_version = "SELECT value FROM about WHERE name = 'version'"
            if db.execute(found_version).fetchone()[0] == "1":
                db.executescript(UPGRADE)
            version = db.execute(found_version).fetchone()[0]
        except (sqlite3.Error, OSError) as error:
            if db is not None:
                db.close()
            if "locked" in str(error):
                raise InputError(f"{self.path} is in use by another process: one service has one store") from None
            raise InputError(f"{self.path} cannot be used ({error}): restore it from a copy, or give another") from None
        if version != VERSION:
            db.close()
            raise InputError(f"{self.path} has version {version} of the store and this prism has {VERSION}")
        return db

    def reopen(self) -> None:
        """What the disk holds is what counts, whatever the failed commit did."""
        self.close()
        try:
            self._db = self._open()
        except InputError as error:
            raise StoreError(str(error)) from None
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO about VALUES ('reopened', ?)", (str(time.time()),))

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
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
        """All events of a round in one transaction: one flush."""
        done = []
        with self._transaction():
            for user, id_, item, when in events:
                row = self._db.execute(APPEND, (*user, id_, item, when)).fetchone()
                if row is None:
                    found = "SELECT seq FROM events WHERE tenant = ? AND id = ?"
                    done.append(Stored(self._db.execute(found, (user.tenant, id_)).fetchone()[0], False))
                else:
                    done.append(Stored(row[0], True))
        return done

    def events(self, users: Sequence[User], after: Sequence[int]) -> list[list[Kept]]:
        """One query per user: they are cheap here."""
        found = "SELECT seq, id, item, time FROM events WHERE tenant = ? AND user = ? AND seq > ? ORDER BY time, seq"
        return [
            [Kept(*row) for row in self._read(found, (*user, least))] for user, least in zip(users, after, strict=True)
        ]

    def versions(self, users: Sequence[User]) -> list[Version]:
        found = "SELECT seq, id FROM events WHERE tenant = ? AND user = ? ORDER BY seq DESC LIMIT 1"
        rows = [self._read(found, tuple(user)) for user in users]
        return [Version(*row[0]) if row else NOBODY for row in rows]

    def save(self, model: str, states: Iterable[tuple[User, Snapshot]]) -> None:
        rows = [(*user, model, *one.sealed()) for user, one in states]
        with self._transaction():
            self._db.executemany(SAVE, rows)

    def snapshots(self, users: Sequence[User], model: str) -> list[Snapshot | None]:
        query = "SELECT seq, id, time, checksum, state FROM snapshots WHERE tenant = ? AND user = ? AND model = ?"
        found = [self._read(query, (*user, model)) for user in users]
        return [Snapshot.opened(*rows[0]) if rows else None for rows in found]

    def forget(self, user: User) -> int:
        """Overwritten with zeros too: `secure_delete` is on."""
        with self._transaction():
            self._db.execute("DELETE FROM snapshots WHERE tenant = ? AND user = ?", user)
            return self._db.execute("DELETE FROM events WHERE tenant = ? AND user = ?", user).rowcount

    def set_items(self, tenant: str, changes: Sequence[Item]) -> None:
        rows = [(tenant, one.id, one.available, one.name, one.features_text()) for one in changes]
        with self._transaction():
            self._db.executemany(SET_ITEM, rows)

    def items(self, tenant: str) -> list[Item]:
        rows = self._read("SELECT item, available, name, features FROM items WHERE tenant = ?", (tenant,))
        return [Item.read(*row) for row in rows]

    def count(self) -> int:
        return int(self._read("SELECT COUNT(*) FROM events", ())[0][0])

    def _read(self, query: str, values: tuple[object, ...]) -> list[tuple]:  # type: ignore[type-arg]
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(str(error)) from None
