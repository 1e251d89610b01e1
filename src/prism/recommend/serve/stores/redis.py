"""Events in Redis, for more than one machine: a list per user, changed by scripts that run whole or not at all.

| key | |
|---|---|
| prism:events:TENANT:USER | list; entry n is the JSON of [id, item, time] of the user's event n + 1 |
| prism:ids:TENANT | hash: event id → number among its user's events |
| prism:state:TENANT:USER | hash: the snapshot |
| prism:items:TENANT | hash: item → 0 or 1, whether it may be recommended |
| prism:names:TENANT, prism:features:TENANT | hash: item → its name; JSON of its features |
| prism:changes:TENANT | how often these were changed |

An answer comes after the flush if the server has `appendonly yes` and `appendfsync always`; another one is refused,
unless the address says `?relaxed=1`. Lengths of tenants' names stand before them in keys: no two users share a key.
"""

import json
from collections.abc import Iterable, Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis

from prism.errors import InputError
from prism.recommend.serve.stores.base import (
    NOBODY,
    Event,
    Item,
    Kept,
    ServerStore,
    Snapshot,
    Stored,
    StoreError,
    User,
    Version,
    in_time,
)

# KEYS: the events' list and the ids' hash of each event; ARGV: its id and its entry.
APPEND = """
local done = {}
for n = 1, #ARGV / 2 do
  local list, ids, id, entry = KEYS[2 * n - 1], KEYS[2 * n], ARGV[2 * n - 1], ARGV[2 * n]
  local seq = redis.call('HGET', ids, id)
  if seq then
    done[n] = -tonumber(seq)
  else
    done[n] = redis.call('RPUSH', list, entry)
    redis.call('HSET', ids, id, done[n])
  end
end
return done
"""
# KEYS: events, state; ARGV: the number and id of the event that the state has taken in last, facts, state.
SAVE = """
local entry = redis.call('LINDEX', KEYS[1], ARGV[1] - 1)
if entry and cjson.decode(entry)[1] == ARGV[2] then
  redis.call('HSET', KEYS[2], 'facts', ARGV[3], 'state', ARGV[4])
end
"""
# KEYS: events, ids, state.
FORGET = """
local events = redis.call('LRANGE', KEYS[1], 0, -1)
for _, entry in ipairs(events) do redis.call('HDEL', KEYS[2], cjson.decode(entry)[1]) end
redis.call('DEL', KEYS[1], KEYS[3])
return #events
"""
SECONDS = 5.0


class RedisStore(ServerStore):
    """One server, not a cluster."""

    failures = redis.RedisError

    def connect(self, address: str) -> None:
        """Asks the server what it promises."""
        parts = urlsplit(address)
        options = dict(parse_qsl(parts.query))
        self._relaxed = options.pop("relaxed", "0") == "1"
        plain = urlunsplit(parts._replace(query=urlencode(options)))
        self._db = redis.Redis.from_url(plain, socket_timeout=SECONDS, socket_connect_timeout=SECONDS)
        self._check()
        self._append = self._db.register_script(APPEND)
        self._save = self._db.register_script(SAVE)
        self._forget = self._db.register_script(FORGET)

    def _check(self) -> None:
        """Refuses a server that may forget what it has acknowledged."""
        self._db.ping()
        if self._relaxed:
            return
        wanted = {"appendonly": "yes", "appendfsync": "always"}
        found = {name: self._db.config_get(name).get(name) for name in wanted}
        if found != wanted:
            shown = ", ".join(f"{name} {value}" for name, value in found.items())
            raise InputError(
                f"store {self.shown} has {shown}, so it may lose what it has acknowledged: start redis-server with "
                "--appendonly yes --appendfsync always, or add ?relaxed=1 to the address"
            )

    def append(self, events: Sequence[Event]) -> list[Stored]:
        keys = [key for event in events for key in (_key("events", event.user), _key("ids", event.user.tenant))]
        given = [part for event in events for part in (event.id, json.dumps([event.id, event.item, event.time]))]
        done = self.attempt(lambda: self._append(keys=keys, args=given))
        return [Stored(abs(seq), seq > 0) for seq in done]

    def events(self, users: Sequence[User], after: Sequence[int]) -> list[list[Kept]]:
        pipe = self._db.pipeline(transaction=False)
        for user, least in zip(users, after, strict=True):
            pipe.lrange(_key("events", user), least, -1)
        rows = self.attempt(pipe.execute)
        return [
            in_time(Kept(least + n + 1, *json.loads(entry)) for n, entry in enumerate(row))
            for row, least in zip(rows, after, strict=True)
        ]

    def versions(self, users: Sequence[User]) -> list[Version]:
        pipe = self._db.pipeline(transaction=False)
        for user in users:
            pipe.llen(_key("events", user)).lindex(_key("events", user), -1)
        rows = self.attempt(pipe.execute)
        pairs = zip(rows[::2], rows[1::2], strict=True)
        return [Version(length, json.loads(last)[0]) if last is not None else NOBODY for length, last in pairs]

    def save(self, model: str, states: Iterable[tuple[User, Snapshot]]) -> None:
        """One round trip; a snapshot is written whole."""
        pipe = self._db.pipeline(transaction=False)
        for user, one in states:
            *facts, state = one.sealed()
            args = [*one.version, json.dumps([model, *facts]), state]
            self._save(keys=[_key("events", user), _key("state", user)], args=args, client=pipe)
        self.attempt(pipe.execute)

    def snapshots(self, users: Sequence[User], model: str) -> list[Snapshot | None]:
        pipe = self._db.pipeline(transaction=False)
        for user in users:
            pipe.hmget(_key("state", user), "facts", "state")
        return [_snapshot(facts, state, model) for facts, state in self.attempt(pipe.execute)]

    def forget(self, user: User) -> int:
        """Gone from memory at once; from the append-only file when Redis next rewrites it."""
        keys = [_key("events", user), _key("ids", user.tenant), _key("state", user)]
        return int(self.attempt(lambda: self._forget(keys=keys)))

    def set_items(self, tenant: str, changes: Sequence[Item]) -> None:
        pipe = self._db.pipeline(transaction=True)
        for one in changes:
            pipe.hsetnx(_key("items", tenant), one.id, 1)
            given = (("items", one.available), ("names", one.name), ("features", one.features_text()))
            for kind, value in given:
                if value is not None:
                    pipe.hset(_key(kind, tenant), one.id, int(value) if kind == "items" else value)  # type: ignore
        pipe.incr(_key("changes", tenant))
        self.attempt(pipe.execute)

    def items(self, tenant: str) -> list[Item]:
        pipe = self._db.pipeline(transaction=True)
        for kind in ("items", "names", "features"):
            pipe.hgetall(_key(kind, tenant))
        found = [{key.decode(): value.decode() for key, value in part.items()} for part in self.attempt(pipe.execute)]
        return [Item.read(id_, int(on), found[1].get(id_), found[2].get(id_)) for id_, on in found[0].items()]

    def items_version(self, tenant: str) -> int:
        return int(self.attempt(lambda: self._db.get(_key("changes", tenant))) or 0)

    def count(self) -> int:
        """Walks the keys: for tests and curiosity."""
        keys = self.attempt(lambda: list(self._db.scan_iter("prism:ids:*")))
        pipe = self._db.pipeline(transaction=False)
        for key in keys:
            pipe.hlen(key)
        return sum(self.attempt(pipe.execute))

    def reopen(self) -> None:
        """The client connects again by itself; the check asks what the server now promises."""
        try:
            self.attempt(self._check)
        except InputError as error:
            raise StoreError(str(error)) from None
        self.attempt(lambda: self._db.set("prism:reopened", 1))

    def close(self) -> None:
        self._db.close()


def _key(kind: str, whose: User | str) -> str:
    if isinstance(whose, str):
        return f"prism:{kind}:{whose}"
    return f"prism:{kind}:{len(whose.tenant)}:{whose.tenant}:{whose.id}"


def _snapshot(facts: bytes | None, state: bytes | None, model: str) -> Snapshot | None:
    try:
        of, seq, id_, time, check = json.loads(facts or b"null")
        return Snapshot.opened(seq, id_, time, check, state) if of == model else None
    except (ValueError, TypeError):  # none, or damaged
        return None
