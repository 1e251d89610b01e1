"""The two requests that come a thousand times a second: events, and recommendations.

They are checked by the same models as FastAPI would check them (`schema.py`, compiled), asked of the engine, and
written as JSON from pieces. The endpoints of the OpenAPI document call the same methods.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl

from pydantic import ValidationError

from prism.recommend.partition import partition
from prism.recommend.serve import schema
from prism.recommend.serve.catalogue import Catalogue
from prism.recommend.serve.labels import text
from prism.recommend.serve.problems import Refused, invalid
from prism.recommend.serve.requests import Answer, Ask, Question, Wanted
from prism.recommend.serve.service import Service
from prism.recommend.serve.stores.base import Event, User


class Answers:
    """Requests in, JSON out."""

    def __init__(self, service: Service):
        self.service = service

    async def ask(self, ask: Ask) -> Any:
        """The engine's answer, or a TimeoutError."""
        async with asyncio.timeout(self.service.options.timeout):
            return await self.service.engine.ask(ask)

    async def call(self, work: Callable[[], Any]) -> Any:
        """Something that only the engine's thread may do."""
        return await self.ask(Ask(call=work, loop=asyncio.get_running_loop()))

    def user(self, tenant: str, user: str) -> User:
        """A user of this shard."""
        if self.service.shards > 1:
            theirs = partition(user, self.service.shards)
            if theirs != self.service.shard:
                raise Refused(421, f"user {user!r} is of shard {theirs} of {self.service.shards}")
        return User(tenant, user)

    def refuse_ahead(self, events: list[schema.EventIn]) -> int:
        """The time now; an event far ahead of it, after which the user's real ones would all be late, is refused."""
        now = int(time.time())
        latest = now + self.service.options.future
        for n, event in enumerate(events):
            if event.time is not None and event.time > latest:
                ahead = f"time {event.time} is {event.time - now:,} s ahead of the service's clock"
                most = f"{self.service.options.future:,} are allowed (--future)"
                raise Refused(422, f"body.events.{n}: {ahead}, {most}; nothing of the request was taken")
        return now

    async def events(self, body: schema.EventsIn, tenant: str) -> str:
        """Takes in events; answered when they are on the disk."""
        now = self.refuse_ahead(body.events)
        given = [
            Event(
                self.user(tenant, one.user), one.id or uuid.uuid4().hex, one.item, now if one.time is None else one.time
            )
            for one in body.events
        ]
        users = list({event.user: None for event in given})
        questions = [] if body.recommend is None else await self._questions(users, body.recommend)
        answer: Answer = await self.ask(
            Ask(events=given, questions=questions, loop=asyncio.get_running_loop())
        )  # fmt: skip
        self.service.measures.events.inc(sum(one.new for one in answer.stored))
        stored = ",".join(
            f'{{"id":{text(event.id)},"seq":{one.seq},"new":{_bool(one.new)},"known":{_bool(known)}}}'
            for event, one, known in zip(given, answer.stored, answer.known, strict=True)
        )
        found = "null" if body.recommend is None else _recommended(users, answer)
        return f'{{"events":[{stored}],"recommendations":{found}}}'

    async def recommendations(self, body: schema.RecommendationsIn, tenant: str) -> str:
        """The items most likely to come next, for many users."""
        users = [self.user(tenant, user) for user in body.users]
        questions = await self._questions(users, body)
        answer: Answer = await self.ask(Ask(questions=questions, loop=asyncio.get_running_loop()))
        return f'{{"model":{text(answer.labels.key)},"recommendations":{_recommended(users, answer)}}}'

    async def catalogue(self, tenant: str) -> Catalogue:
        found: Catalogue = await self.call(lambda: self.service.engine.catalogue(tenant))
        return found

    async def _questions(self, users: list[User], options: schema.RecommendOptions) -> list[Question]:
        made, wanted = self.service.engine.recommender, None
        if options.allow is not None or options.deny is not None:
            of = await self.catalogue(users[0].tenant)
            wanted = Wanted(options.allow, options.deny, of, of.permits(options.allow, options.deny))
        at = int(time.time()) if options.at is None and made.model.config.query_time else options.at
        return [Question(user, options.k, options.exclude_seen, wanted, at) for user in users]


# (method, path) → a function of (query, body) that gives the checked request and the name of what answers it.
PARSERS: dict[tuple[str, str], Callable[[bytes, bytes], tuple[Any, str]]] = {
    ("POST", "/events"): lambda _, body: (_checked(schema.EventsIn, body), "events"),
    ("POST", "/recommendations"): lambda _, body: (_checked(schema.RecommendationsIn, body), "recommendations"),
    ("GET", "/recommendations"): lambda query, _: (_asked(query), "recommendations"),
}


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _recommended(users: Iterable[User], answer: Answer) -> str:
    rows = (
        f'{{"user":{text(user.id)},"items":{answer.labels.items(found)}}}'
        for user, found in zip(users, answer.found, strict=True)
    )
    return f"[{','.join(rows)}]"


def _checked(model: Any, body: bytes) -> Any:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid("body", error) from None


def _asked(query: bytes) -> schema.RecommendationsIn:
    given = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    takes = schema.RecommendationIn.model_fields
    for name in given:
        if name not in takes:
            rest = "allow and deny go into the body of POST"
            raise Refused(422, f"query.{name[:100]}: GET /recommendations takes {', '.join(takes)}; {rest}")
    try:
        one = schema.RecommendationIn.model_validate(given)
    except ValidationError as error:
        raise invalid("query", error) from None
    return schema.RecommendationsIn(users=[one.user], k=one.k, exclude_seen=one.exclude_seen, at=one.at)
