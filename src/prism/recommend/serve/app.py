"""The web application: FastAPI over the engine; errors are problem+json, and nothing of a request is trusted."""

import asyncio
import inspect
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from prism.errors import InputError
from prism.recommend.because import because
from prism.recommend.choose import permitted
from prism.recommend.export import is_model
from prism.recommend.partition import partition
from prism.recommend.recommender import Recommender
from prism.recommend.serve import schema
from prism.recommend.serve.engine import Answer, Ask, Busy, Engine, Question
from prism.recommend.serve.guard import Guard
from prism.recommend.serve.keys import Keys
from prism.recommend.serve.measures import Measures
from prism.recommend.serve.store import Event, StoreError, User

STATIC = Path(__file__).parent / "static"
log = logging.getLogger("prism.serve")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may ask for."""

    body: int = 1_000_000
    """Bytes of a request."""
    rate: float = 0.0
    """Requests a second of one key; 0: as many as come."""
    seconds: float = 5.0
    """Until a request is given up."""


@dataclass(kw_only=True)
class Service:
    """What the endpoints need."""

    engine: Engine
    folder: Path
    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    shard: int = 0
    shards: int = 1
    measures: Measures = field(default_factory=Measures)


class Endpoints:
    """One method per endpoint."""

    def __init__(self, service: Service):
        self.of, self.engine = service, service.engine

    async def events(self, body: schema.EventsIn, tenant: str) -> schema.EventsOut:
        """Takes in events; answered when they are on the disk. A late event is put in its place in time."""
        now = int(time.time())
        given = [
            Event(
                self._user(tenant, one.user),
                one.id or uuid.uuid4().hex,
                one.item,
                now if one.time is None else one.time,
            )
            for one in body.events
        ]
        wish, questions = body.recommend, []
        users = list(dict.fromkeys(event.user for event in given))
        if wish is not None:
            questions = self._questions(users, wish)
        answer: Answer = await self._ask(Ask(events=given, questions=questions))
        self.of.measures.events.inc(sum(one.new for one in answer.events))
        return schema.EventsOut(
            events=[
                schema.EventOut(id=event.id, seq=one.seq, new=one.new, known=known)
                for event, one, known in zip(given, answer.events, answer.known, strict=True)
            ],
            recommendations=None if wish is None else _told(users, answer),
        )

    async def recommendations(self, body: schema.Asked, tenant: str) -> schema.RecommendationsOut:
        """The items most likely to come next, for many users."""
        users = [self._user(tenant, user) for user in body.users]
        answer = await self._ask(Ask(questions=self._questions(users, body)))
        return schema.RecommendationsOut(model=self.engine.recommender.key, recommendations=_told(users, answer))

    async def recommendation(
        self, tenant: str, user: schema.Id, k: schema.Count = 10, exclude_seen: bool | None = None
    ) -> schema.RecommendationsOut:
        """The items most likely to come next, for one user."""
        return await self.recommendations(schema.Asked(users=[user], k=k, exclude_seen=exclude_seen), tenant)

    async def similar(self, tenant: str, item: schema.Id, k: schema.Count = 10) -> schema.SimilarOut:
        """The items nearest to one in the model's table."""
        found = self.engine.recommender.similar(item, k=k)
        return schema.SimilarOut(item=item, items=[_item(one) for one in found])

    async def because(
        self, tenant: str, user: schema.Id, item: schema.Id, k: schema.Count = 5
    ) -> list[schema.ReasonOut]:
        """The events of a user's history that an item's score leans on: how far it falls without each."""
        who = self._user(tenant, user)
        stored = await self._ask(Ask(call=lambda: self.engine.store.events(who)))
        model = self.engine.recommender
        codes = model.log.item_codes([one for _, one, _ in stored]).tolist()
        known = [event for event, code in zip(stored, codes, strict=True) if 0 <= code < model.model.items][-200:]
        items, times = [one for _, one, _ in known], [when for _, _, when in known]
        found = await asyncio.to_thread(because, model, item, None, history=items, times=times, k=k)
        return [schema.ReasonOut(item=one.item, name=one.name, effect=one.effect, age=one.age) for one in found]

    async def user(self, tenant: str, user: Annotated[schema.Id, InPath()]) -> schema.Json:
        """What is kept of a user: number of events, first and latest time, size of the state, the latest items."""
        who = self._user(tenant, user)
        found = await self._ask(Ask(call=lambda: self.engine.describe(who)))
        if found is None:
            raise HTTPException(404, f"user {user!r} has no events")
        return {"user": user, "model": self.engine.recommender.key, **found}

    async def forget(self, tenant: str, user: Annotated[schema.Id, InPath()]) -> schema.Json:
        """Removes everything that is kept of a user."""
        who = self._user(tenant, user)
        return {"user": user, "removed_events": await self._ask(Ask(call=lambda: self.engine.forget(who)))}

    async def items(self, tenant: str, search: str = "", limit: schema.Count = 20) -> list[schema.Json]:
        """Items whose name or id contains a text, and whether they may be recommended."""
        gone = set(await self._ask(Ask(call=lambda: self.engine.store.unavailable(tenant))))
        items, text, found = self.engine.recommender.log, search.lower(), []
        for code in range(self.engine.recommender.model.items):
            label, id_ = items.item_label(code), items.item_ids[code]
            if text in label.lower() or text in str(id_).lower():
                found.append({"item": str(id_), "name": label, "available": str(id_) not in gone})
                if len(found) == limit:
                    break
        return found

    async def set_items(self, body: schema.ItemsIn, tenant: str) -> list[schema.Json]:
        """Says which items may be recommended from now on."""
        given = [(one.item, one.available) for one in body.items]
        known = await self._ask(Ask(call=lambda: self.engine.set_items(tenant, given)))
        return [{"item": item, "available": on, "known": ok} for (item, on), ok in zip(given, known, strict=True)]

    async def model(self, tenant: str) -> schema.Json:
        """The model that answers."""
        made, engine = self.engine.recommender, self.engine
        return {
            "id": made.key,
            "name": self.of.folder.name,
            "items": made.model.items,
            "mixer": made.config.mixer,
            "since": engine.since,
            "users_in_memory": len(engine.pool),
            "state_bytes": 4 * made.model.backbone.state_size(),
        }

    async def swap(self, body: schema.ModelIn, tenant: str) -> schema.Json:
        """Changes to another model, whose folder lies beside the one served, without a gap."""
        folder = self.of.folder.parent / body.name
        if not is_model(folder):
            raise HTTPException(404, f"there is no model named {body.name!r} beside the one that is served")
        made = await asyncio.to_thread(Recommender.load, folder, device="cpu")
        await asyncio.wrap_future(self.engine.swap(made))
        self.of.folder = folder
        return await self.model(tenant)

    async def health(self) -> schema.Json:
        """Whether the process runs."""
        return {"status": "ok"}

    async def ready(self) -> Response:
        """Whether events can be stored now."""
        failure = self.engine.failure
        return (
            problem(503, f"the store does not take writes: {failure}") if failure else JSONResponse({"status": "ready"})
        )

    async def metrics(self) -> Response:
        """For Prometheus."""
        return Response(self.of.measures.text(self.engine), media_type="text/plain; version=0.0.4")

    def _user(self, tenant: str, user: str) -> User:
        if self.of.shards > 1 and partition(user, self.of.shards) != self.of.shard:
            raise HTTPException(421, f"user {user!r} is of shard {partition(user, self.of.shards)} of {self.of.shards}")
        return User(tenant, user)

    def _questions(self, users: list[User], wish: schema.Wish) -> list[Question]:
        made, mask = self.engine.recommender, None
        if wish.allow is not None or wish.deny is not None:
            mask = permitted(made.log, made.model.items, wish.allow, wish.deny)
        at = int(time.time()) if wish.at is None and made.model.config.query_time else wish.at
        return [Question(user, wish.k, wish.exclude_seen, mask, at) for user in users]

    async def _ask(self, ask: Ask) -> Any:
        future = asyncio.wrap_future(self.engine.ask(ask))
        return await asyncio.wait_for(future, self.of.limits.seconds)


def _item(one: Any) -> schema.ItemOut:
    return schema.ItemOut(item=one.item, score=one.score, name=one.name)


def _told(users: list[User], answer: Answer) -> list[schema.UserOut]:
    return [
        schema.UserOut(user=user.id, items=[_item(one) for one in found])
        for user, found in zip(users, answer.found, strict=True)
    ]


def problem(status: int, detail: str) -> JSONResponse:
    """An error as RFC 9457 has it."""
    content = schema.Problem(title=HTTPStatus(status).phrase, status=status, detail=detail).model_dump()
    return JSONResponse(content, status, media_type="application/problem+json")


def create_app(service: Service) -> FastAPI:
    """The application with all its endpoints."""
    app = FastAPI(title="prism", version="1", description=__doc__, docs_url=None, redoc_url=None)
    ends = Endpoints(service)

    def tenant(x_api_key: Annotated[str | None, Header(max_length=200)] = None) -> str:
        found = service.keys.tenant(x_api_key)
        if found is None:
            raise HTTPException(401, "the header X-API-Key has no key of this service")
        return found

    codes = (400, 401, 404, 413, 421, 422, 429, 503, 504)
    errors = {code: {"model": schema.Problem, "content": {"application/problem+json": {}}} for code in codes}
    routes: list[tuple[str, str, Callable[..., Any]]] = [
        ("POST", "/events", ends.events),
        ("POST", "/recommendations", ends.recommendations),
        ("GET", "/recommendations", ends.recommendation),
        ("GET", "/similar", ends.similar),
        ("GET", "/because", ends.because),
        ("GET", "/users/{user}", ends.user),
        ("DELETE", "/users/{user}", ends.forget),
        ("GET", "/items", ends.items),
        ("PUT", "/items", ends.set_items),
        ("GET", "/model", ends.model),
        ("POST", "/model", ends.swap),
    ]
    for method, path, endpoint in routes:
        app.add_api_route(path, with_tenant(endpoint, tenant), methods=[method], responses=errors)  # type: ignore[arg-type]
    for path, endpoint in (("/health", ends.health), ("/metrics", ends.metrics)):
        app.add_api_route(path, endpoint, methods=["GET"])
    app.add_api_route("/ready", ends.ready, methods=["GET"], responses={503: errors[503]}, response_model=None)  # type: ignore[dict-item]
    _handlers(app)
    app.mount("/", StaticFiles(directory=STATIC, html=True), name="page")
    app.add_middleware(Guard, service=service, problem=problem)
    return app


def with_tenant(endpoint: Callable[..., Any], tenant: Callable[..., str]) -> Callable[..., Any]:
    """The endpoint, its argument `tenant` taken from the request's key."""

    async def call(*args: Any, **named: Any) -> Any:
        return await endpoint(*args, **named)

    signature = inspect.signature(endpoint, eval_str=False)
    given = [
        one.replace(annotation=Annotated[str, Depends(tenant)], default=inspect.Parameter.empty)
        if name == "tenant"
        else one
        for name, one in signature.parameters.items()
    ]
    ordered = sorted(given, key=lambda one: one.default is not inspect.Parameter.empty)
    call.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
    call.__name__, call.__doc__ = endpoint.__name__, endpoint.__doc__
    return call


def _handlers(app: FastAPI) -> None:
    async def wrong(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return problem(422, f"{where}: {first['msg']}")

    async def refused(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return problem(error.status_code, str(error.detail))

    async def bad(_: Request, error: Exception) -> JSONResponse:
        return problem(422, str(error))

    async def busy(_: Request, error: Exception) -> JSONResponse:
        return problem(503, "too many requests wait: try again in a moment")

    async def failing(_: Request, error: Exception) -> JSONResponse:
        return problem(503, f"the store does not take this now: {error}")

    async def late(_: Request, error: Exception) -> JSONResponse:
        return problem(504, "the answer took too long")

    app.add_exception_handler(RequestValidationError, wrong)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(InputError, bad)
    app.add_exception_handler(Busy, busy)
    app.add_exception_handler(StoreError, failing)
    app.add_exception_handler(TimeoutError, late)
