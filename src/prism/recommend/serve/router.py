"""Which shard answers: a request may come to any of them, and is shared out by the one partition function.

Events and questions of one user go to that user's shard; a request about several is divided and its answers put
together; what concerns all users (items, the model) goes to everyone.
"""

import asyncio
import json
import uuid
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qs, quote

from prism.recommend.partition import partition
from prism.recommend.serve import schema
from prism.recommend.serve.answers import Answers
from prism.recommend.serve.client import Reply
from prism.recommend.serve.peers import Peers, accepted
from prism.recommend.serve.problems import Refused

SHARED = {("PUT", "/items"), ("POST", "/model")}
# In which another shard must have loaded another model.
MODEL_SECONDS = 300.0


class Router:
    """Shares out requests; what is this shard's own is left to the caller."""

    def __init__(self, answers: Answers, peers: Peers):
        self.answers, self.peers = answers, peers

    def shard_of(self, user: str) -> int:
        return partition(user, len(self.peers.addresses))

    async def events(self, body: schema.EventsIn, tenant: str, key: str) -> str:
        """As `Answers.events`; what any shard would refuse for its time is refused before one takes a part."""
        self.answers.refuse_ahead(body.events)
        named = [one if one.id else one.model_copy(update={"id": uuid.uuid4().hex}) for one in body.events]
        places = _places([self.shard_of(one.user) for one in named])
        bodies = {n: body.model_copy(update={"events": [named[row] for row in rows]}) for n, rows in places.items()}
        parts = await self._answered("events", bodies, tenant, key)
        if len(parts) == 1:
            return parts[0]
        answers = [json.loads(one) for one in parts]
        events: list[Any] = [None] * len(named)
        for rows, answer in zip(places.values(), answers, strict=True):
            for n, event in zip(rows, answer["events"], strict=True):
                events[n] = event
        found = None if body.recommend is None else _by_user(dict.fromkeys(one.user for one in named), answers)
        return json.dumps({"events": events, "recommendations": found})

    async def recommendations(self, body: schema.RecommendationsIn, tenant: str, key: str) -> str:
        places = _places([self.shard_of(user) for user in body.users])
        bodies = {n: body.model_copy(update={"users": [body.users[row] for row in rows]}) for n, rows in places.items()}
        parts = await self._answered("recommendations", bodies, tenant, key)
        if len(parts) == 1:
            return parts[0]
        answers = [json.loads(one) for one in parts]
        return json.dumps({"model": answers[0]["model"], "recommendations": _by_user(body.users, answers)})

    async def _answered(self, name: str, bodies: dict[int, Any], tenant: str, key: str) -> list[str]:
        """What each shard answers to its part of a request; `name` is the path and the method of `Answers`."""

        async def part(shard: int, body: Any) -> str:
            if shard == self.peers.own:
                answer: str = await getattr(self.answers, name)(body, tenant)
                return answer
            async with asyncio.timeout(self.answers.service.options.timeout):
                content = body.model_dump_json(exclude_none=True).encode()
                return accepted(await self.peers.ask(shard, "POST", f"/{name}", content, key)).decode()

        return await asyncio.gather(*(part(shard, body) for shard, body in bodies.items()))

    async def elsewhere(self, scope: Any, key: str) -> Reply | None:
        """Another shard's answer about its user; None: the user is one of ours, or the request is about nobody."""
        path: str = scope["path"]
        query = scope["query_string"].decode("latin-1")
        if path == "/ready":
            await self._all_ready()
            return None
        if scope["method"] not in ("GET", "DELETE"):  # another shard's answer to HEAD would have no body to wait for
            return None
        if path.startswith("/users/"):
            user = path.removeprefix("/users/")
        elif path == "/because":
            user = parse_qs(query).get("user", [""])[-1]
        else:
            return None
        shard = self.shard_of(user)
        if shard == self.peers.own:
            return None
        target = quote(path, safe="/") + (f"?{query}" if query else "")
        async with asyncio.timeout(self.answers.service.options.timeout):
            return await self.peers.ask(shard, scope["method"], target, key=key)

    async def _all_ready(self) -> None:
        try:
            await self.peers.everyone(self.answers.service.options.timeout, "GET", "/ready")
        except Refused as error:
            raise Refused(503, str(error)) from None

    async def to_everyone(self, scope: Any, body: bytes, key: str) -> None:
        """Passes on what concerns all users; raises the first refusal."""
        seconds = self.answers.service.options.timeout
        if scope["path"] == "/model":
            seconds = max(seconds, MODEL_SECONDS)
        await self.peers.everyone(seconds, scope["method"], scope["path"], body, key)


def _places(shards: list[int]) -> dict[int, list[int]]:
    """The positions that belong to each shard."""
    found: dict[int, list[int]] = {}
    for n, shard in enumerate(shards):
        found.setdefault(shard, []).append(n)
    return found


def _by_user(users: Iterable[str], answers: list[Any]) -> list[Any]:
    """Recommendations in the order of users, one row for each mention."""
    found = {one["user"]: one for answer in answers for one in answer["recommendations"]}
    return [found[user] for user in users]
