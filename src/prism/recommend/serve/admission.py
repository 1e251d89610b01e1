"""What comes before an answer (size of a body, rate of a key, whose key it is) and after it (a log line, a measure).

Requests that come often go straight to `Answers`; all others, to the application that FastAPI makes.
"""

import asyncio
import json
import logging
import time
from collections import OrderedDict
from hashlib import sha256
from typing import Any

from prism.recommend.serve.answers import PARSERS, Answers
from prism.recommend.serve.paths import OTHER, Paths
from prism.recommend.serve.peers import HOP, PROOF
from prism.recommend.serve.problems import MEDIA, Refused, problem, status_of
from prism.recommend.serve.router import SHARED, Router
from prism.recommend.serve.service import Service

log = logging.getLogger("prism.serve.requests")
failures = logging.getLogger("prism.serve")
# Keys and addresses whose rate is remembered.
MOST_CLIENTS = 10_000
JSON = "application/json"
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"})


class Gone(Exception):
    """The client went away before its request was whole."""


class Admission:
    """The outermost ASGI application."""

    def __init__(self, app: Any, service: Service, answers: Answers):
        self.app, self.service, self.answers = app, service, answers
        self._paths = Paths(app.routes)
        self._router = None if service.peers is None else Router(answers, service.peers)
        self._rates: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, path = time.perf_counter(), 499, scope["path"]
        parser = PARSERS.get((scope["method"], path))
        if parser is None:
            path = self._paths.pattern(path)
        try:
            self._admit(scope)
            if parser is not None:
                status = await self._answer(parser, scope, receive, send)
            elif path != OTHER and scope["method"] not in (takes := self._paths.methods(path)):
                status = await refuse_method(send, path, ", ".join(takes))
            else:
                status = await self._pass_on(scope, receive, send)
        except Gone:
            pass
        except Exception as error:
            status, detail = status_of(error) or (500, "the service failed: its log says why")
            if status == 500:
                failures.exception("a request failed")
            if not scope.get("prism.answered"):
                await respond(send, status, problem(status, detail), MEDIA)
        seconds = time.perf_counter() - start
        method = scope["method"] if scope["method"] in METHODS else OTHER
        self.service.measures.request(method, path, status, seconds)
        if log.isEnabledFor(logging.INFO):
            line = {"method": method, "path": path, "status": status, "ms": round(seconds * 1e3, 3)}
            log.info(json.dumps(line))

    async def _answer(self, parser: Any, scope: Any, receive: Any, send: Any) -> int:
        key = header(scope, b"x-api-key")
        tenant, body = self._tenant(key), b""
        if scope["method"] != "GET":
            kind = header(scope, b"content-type").partition(";")[0].strip().lower()
            if kind != JSON and not kind.endswith("+json"):
                raise Refused(422, f"the body must be JSON, with Content-Type: {JSON}")
            body = await self._body(receive)
        request, name = parser(scope["query_string"], body)
        if self._shares(scope):
            answer = await getattr(self._router, name)(request, tenant, key)
        else:
            answer = await getattr(self.answers, name)(request, tenant)
        await respond(send, 200, answer.encode(), JSON)
        return 200

    def _tenant(self, key: str) -> str:
        tenant = self.service.keys.tenant(key)
        if tenant is None:
            raise Refused(401, "the header X-API-Key has no key of this service")
        return tenant

    def _shares(self, scope: Any) -> bool:
        """Whether the request may be about other shards' users; one that comes from a shard is not."""
        return self._router is not None and not header(scope, HOP.encode())

    async def _pass_on(self, scope: Any, receive: Any, send: Any) -> int:
        key = header(scope, b"x-api-key")
        router = self._router if self._shares(scope) else None
        if router is not None and (reply := await router.elsewhere(scope, key)) is not None:
            await respond(send, reply.status, reply.body, reply.kind)
            return reply.status
        if (scope["method"], scope["path"]) in SHARED:
            self._tenant(key)
            body = await self._body(receive)  # read here: what FastAPI meets while it reads becomes 400
            if router is not None:
                await router.to_everyone(scope, body, key)
            receive = replay(body, receive)
        status = 500

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, scope["prism.answered"] = message["status"], True
            await send(message)

        await self.app(scope, self._limited(receive), noted)
        return status

    def _admit(self, scope: Any) -> None:
        length = header(scope, b"content-length") or "0"
        if not length.isdigit() or int(length) > self.service.options.max_body:
            raise Refused(413, f"a request may have {self.service.options.max_body:,} bytes")
        if not self.service.options.max_rate or self._counted(scope):
            return
        if not self._spend(header(scope, b"x-api-key"), scope.get("client")):
            raise Refused(429, f"more than {self.service.options.max_rate:g} requests per second: slow down")

    def _counted(self, scope: Any) -> bool:
        """Whether another shard has let the request in: refused now, it would be taken in part."""
        return self.service.peers is not None and self.service.peers.sent(header(scope, PROOF.encode()))

    def _spend(self, key: str, client: Any) -> bool:
        """A bucket for each key, or address: one second's requests at most, filled at the rate."""
        who = sha256(key.encode()).hexdigest() if key else str(client and client[0])
        now, rate = time.monotonic(), self.service.options.max_rate
        left, then = self._rates.pop(who, (max(rate, 1.0), now))
        left = min(max(rate, 1.0), left + (now - then) * rate)
        self._rates[who] = (left - 1 if left >= 1 else left, now)
        if len(self._rates) > MOST_CLIENTS:
            self._rates.popitem(last=False)
        return left >= 1

    async def _body(self, receive: Any) -> bytes:
        limited, parts = self._limited(receive), []
        while True:
            message = await limited()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(parts)

    def _limited(self, receive: Any) -> Any:
        """A body that is too long, or too slow to come, is refused while it is read."""
        taken, until = 0, asyncio.get_running_loop().time() + self.service.options.timeout
        whole = False

        async def limited() -> Any:
            nonlocal taken, whole
            if whole:  # what is waited for now is the end of the connection
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise Refused(408, f"the body did not come within {self.service.options.timeout:g} seconds") from None
            taken += len(message.get("body", b""))
            if taken > self.service.options.max_body:
                raise Refused(413, f"a request may have {self.service.options.max_body:,} bytes")
            whole = not message.get("more_body")
            return message

        return limited


def replay(body: bytes, receive: Any) -> Any:
    """A `receive` that gives a body that has been read, then goes on."""
    given = False

    async def again() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def header(scope: Any, name: bytes) -> str:
    """A header's value; empty if there is none."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return ""


async def refuse_method(send: Any, path: str, takes: str) -> int:
    """A path that is known, and another method than it takes."""
    await respond(send, 405, problem(405, f"{path} takes {takes}"), MEDIA, (b"allow", takes.encode()))
    return 405


async def respond(send: Any, status: int, body: bytes, kind: str, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
