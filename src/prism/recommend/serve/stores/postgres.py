"""Events in PostgreSQL, for more than one machine: one transaction per round, on the disk when it is answered.

Services that write for the same user at once take turns: each transaction holds a lock for every user that it writes.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from prism.recommend.serve.stores.base import NOBODY, Event, Item, Kept, ServerStore, Snapshot, Stored, User, Version

SCHEMA = """
CREATE TABLE IF NOT EXISTS prism_events (
  tenant text NOT NULL, "user" text NOT NULL, seq bigint NOT NULL, id text NOT NULL, item text NOT NULL,
  time bigint NOT NULL, PRIMARY KEY (tenant, "user", seq), UNIQUE (tenant, id));
CREATE TABLE IF NOT EXISTS prism_snapshots (
  tenant text NOT NULL, "user" text NOT NULL, model text NOT NULL, seq bigint NOT NULL, id text NOT NULL,
  time bigint NOT NULL, checksum bigint NOT NULL, state bytea NOT NULL, PRIMARY KEY (tenant, "user"));
CREATE TABLE IF NOT EXISTS prism_items (
  tenant text NOT NULL, item text NOT NULL, available boolean NOT NULL, PRIMARY KEY (tenant, item));
ALTER TABLE prism_items ADD COLUMN IF NOT EXISTS name text, ADD COLUMN IF NOT EXISTS features text;
CREATE TABLE IF NOT EXISTS prism_about (name text PRIMARY KEY, value text NOT NULL);
"""
USERS = 'unnest(%s::text[], %s::text[]) WITH ORDINALITY AS given(tenant, "user", n)'
# in one order: two transactions never wait for each other
LOCK = f"""
SELECT pg_advisory_xact_lock(key) FROM (
  SELECT DISTINCT hashtextextended(tenant || chr(1) || "user", 0) AS key FROM {USERS} ORDER BY key) AS keys
"""
APPEND = """
WITH given AS (
  SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[])
    WITH ORDINALITY AS given(tenant, "user", id, item, time, n)),
once AS (SELECT DISTINCT ON (tenant, id) * FROM given ORDER BY tenant, id, n),
fresh AS (
  SELECT *, row_number() OVER (PARTITION BY tenant, "user" ORDER BY n) AS place FROM once
  WHERE NOT EXISTS (SELECT 1 FROM prism_events e WHERE e.tenant = once.tenant AND e.id = once.id))
INSERT INTO prism_events
  SELECT tenant, "user", place + COALESCE(
    (SELECT max(seq) FROM prism_events e WHERE e.tenant = fresh.tenant AND e."user" = fresh."user"), 0), id, item, time
  FROM fresh
ON CONFLICT (tenant, id) DO NOTHING RETURNING tenant, id, seq
"""
KNOWN = """
SELECT e.tenant, e.id, e.seq FROM unnest(%s::text[], %s::text[]) AS given(tenant, id)
  JOIN prism_events e ON e.tenant = given.tenant AND e.id = given.id
"""
EVENTS = """
SELECT given.n, e.seq, e.id, e.item, e.time
  FROM unnest(%s::text[], %s::text[], %s::bigint[]) WITH ORDINALITY AS given(tenant, "user", least, n)
  JOIN prism_events e ON e.tenant = given.tenant AND e."user" = given."user" AND e.seq > given.least
  ORDER BY given.n, e.time, e.seq
"""
VERSIONS = f"""
SELECT last.seq, last.id FROM {USERS} LEFT JOIN LATERAL (
  SELECT seq, id FROM prism_events e WHERE e.tenant = given.tenant AND e."user" = given."user"
  ORDER BY seq DESC LIMIT 1) AS last ON true ORDER BY given.n
"""
SNAPSHOTS = f"""
SELECT s.seq, s.id, s.time, s.checksum, s.state FROM {USERS} LEFT JOIN prism_snapshots s
  ON s.tenant = given.tenant AND s."user" = given."user" AND s.model = %s ORDER BY given.n
"""
SAVE = """
INSERT INTO prism_snapshots SELECT given.* FROM (VALUES (%s::text, %s::text, %s::text, %s::bigint, %s::text, %s::bigint,
  %s::bigint, %s::bytea)) AS given(tenant, "user", model, seq, id, time, checksum, state)
  WHERE EXISTS (SELECT 1 FROM prism_events e
    WHERE e.tenant = given.tenant AND e."user" = given."user" AND e.seq = given.seq AND e.id = given.id)
ON CONFLICT (tenant, "user") DO UPDATE SET
  model = excluded.model, seq = excluded.seq, id = excluded.id, time = excluded.time, checksum = excluded.checksum,
  state = excluded.state
"""
SET_ITEM = """
INSERT INTO prism_items VALUES (%(tenant)s, %(id)s, COALESCE(%(available)s, true), %(name)s, %(features)s)
ON CONFLICT (tenant, item) DO UPDATE SET available = COALESCE(%(available)s, prism_items.available),
  name = COALESCE(%(name)s, prism_items.name), features = COALESCE(%(features)s, prism_items.features)
"""
COUNT_CHANGE = """
INSERT INTO prism_about VALUES ('items of ' || %s, '1')
ON CONFLICT (name) DO UPDATE SET value = (prism_about.value::bigint + 1)::text
"""
SECONDS = 5


class PostgresStore(ServerStore):
    """One connection; several services may share the database."""

    failures = psycopg.Error

    def connect(self, address: str) -> None:
        """Makes the tables, if they are not there."""
        self._address = address
        self._db = self._open()

    def _open(self) -> Any:
        db = psycopg.connect(self._address, autocommit=True, connect_timeout=SECONDS)
        with db.transaction():
            db.execute("SET synchronous_commit = on")
            db.execute(f"SET statement_timeout = {SECONDS * 1000}")
            db.execute("SELECT pg_advisory_xact_lock(hashtextextended('prism', 0))")  # two that start make one schema
            db.execute(SCHEMA)
        return db

    def append(self, events: Sequence[Event]) -> list[Stored]:
        columns = [list(column) for column in zip(*((*e.user, e.id, e.item, e.time) for e in events), strict=True)]

        def work() -> list[Stored]:
            with self._db.transaction():
                self._db.execute(LOCK, columns[:2])
                new = {(tenant, id_): seq for tenant, id_, seq in self._db.execute(APPEND, columns).fetchall()}
                keys = [columns[0], columns[2]]
                known = {(tenant, id_): seq for tenant, id_, seq in self._db.execute(KNOWN, keys).fetchall()}
            done = []
            for event in events:
                key = (event.user.tenant, event.id)
                seq = new.pop(key, None)  # the first of a repeated event is the new one
                done.append(Stored(known[key], False) if seq is None else Stored(seq, True))
            return done

        return self.attempt(work)  # type: ignore[no-any-return]

    def events(self, users: Sequence[User], after: Sequence[int]) -> list[list[Kept]]:
        found: list[list[Kept]] = [[] for _ in users]
        for n, *event in self._rows(EVENTS, [*_columns(users), list(after)]):
            found[n - 1].append(Kept(*event))
        return found

    def versions(self, users: Sequence[User]) -> list[Version]:
        return [NOBODY if seq is None else Version(seq, id_) for seq, id_ in self._rows(VERSIONS, _columns(users))]

    def save(self, model: str, states: Iterable[tuple[User, Snapshot]]) -> None:
        rows = [(*user, model, *one.sealed()) for user, one in states]

        def work() -> None:
            with self._db.transaction(), self._db.cursor() as cursor:
                self._db.execute(LOCK, [[row[0] for row in rows], [row[1] for row in rows]])
                cursor.executemany(SAVE, rows)

        self.attempt(work)

    def snapshots(self, users: Sequence[User], model: str) -> list[Snapshot | None]:
        rows = self._rows(SNAPSHOTS, [*_columns(users), model])
        return [None if row[0] is None else Snapshot.opened(*row) for row in rows]

    def forget(self, user: User) -> int:
        """In one transaction; vacuum gives the room back."""

        def work() -> int:
            with self._db.transaction():
                self._db.execute(LOCK, _columns([user]))
                self._db.execute('DELETE FROM prism_snapshots WHERE tenant = %s AND "user" = %s', user)
                gone = self._db.execute('DELETE FROM prism_events WHERE tenant = %s AND "user" = %s', user)
                return int(gone.rowcount)

        return self.attempt(work)  # type: ignore[no-any-return]

    def set_items(self, tenant: str, changes: Sequence[Item]) -> None:
        rows = [one._asdict() | {"tenant": tenant, "features": one.features_text()} for one in changes]

        def work() -> None:
            with self._db.transaction(), self._db.cursor() as cursor:
                cursor.execute(COUNT_CHANGE, [tenant])  # first: two services that change a tenant's items take turns
                cursor.executemany(SET_ITEM, rows)

        self.attempt(work)

    def items(self, tenant: str) -> list[Item]:
        rows = self._rows("SELECT item, available, name, features FROM prism_items WHERE tenant = %s", [tenant])
        return [Item.read(*row) for row in rows]

    def items_version(self, tenant: str) -> int:
        rows = self._rows("SELECT value FROM prism_about WHERE name = 'items of ' || %s", [tenant])
        return int(rows[0][0]) if rows else 0

    def count(self) -> int:
        return int(self._rows("SELECT count(*) FROM prism_events", [])[0][0])

    def reopen(self) -> None:
        """A new connection, and a write."""
        self.close()
        query = """INSERT INTO prism_about VALUES ('reopened', now()::text)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value"""

        def work() -> None:
            self._db = self._open()
            self._db.execute(query)

        self.attempt(work)

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._db.close()

    def _rows(self, query: str, values: list[Any]) -> list[tuple[Any, ...]]:
        return self.attempt(lambda: self._db.execute(query, values).fetchall())  # type: ignore[no-any-return]


def _columns(users: Sequence[User]) -> list[Any]:
    return [[user.tenant for user in users], [user.id for user in users]]
