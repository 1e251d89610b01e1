"""At the door: the size of a body, the rate of a key, a line in the log and a measure for every request."""

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism.recommend.serve.app import Service

log = logging.getLogger("prism.serve.requests")
# Keys and addresses whose rate is remembered.
MOST_CLIENTS = 10_000


class Guard:
    """ASGI middleware: refuses before a body is read."""

    def __init__(self, app: Any, service: "Service", problem: Callable[[int, str], Any]):
        self.app, self.of, self.problem = app, service, problem
        self.rates: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        start, status = time.perf_counter(), 500

        async def told(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, told)
        else:
            await self.app(scope, self._limited(receive), told)
        seconds = time.perf_counter() - start
        route = scope.get("route")
        path = getattr(route, "path", "other")  # never the path itself: it has users' ids
        self.of.measures.request(scope["method"], path, status, seconds)
        log.info(json.dumps({"method": scope["method"], "path": path, "status": status, "ms": round(seconds * 1e3, 3)}))

    def _refusal(self, scope: Any, headers: dict[bytes, bytes]) -> Any:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.of.limits.body:
            return self.problem(413, f"a request may have {self.of.limits.body:,} bytes")
        if self.of.limits.rate and not self._spend(headers.get(b"x-api-key", b""), scope.get("client")):
            return self.problem(429, f"more than {self.of.limits.rate:g} requests a second: slow down")
        return None

    def _spend(self, key: bytes, client: Any) -> bool:
        """A bucket for each key, or address: one second's requests at most, filled at the rate."""
        who = sha256(key).hexdigest() if key else str(client and client[0])
        now, rate = time.monotonic(), self.of.limits.rate
        left, then = self.rates.pop(who, (max(rate, 1.0), now))
        left = min(max(rate, 1.0), left + (now - then) * rate)
        self.rates[who] = (left - 1 if left >= 1 else left, now)
        if len(self.rates) > MOST_CLIENTS:
            self.rates.popitem(last=False)
        return left >= 1

    def _limited(self, receive: Any) -> Any:
        """A body without a stated length is cut where it grows too long: what is left of it cannot be read as JSON."""
        taken = 0

        async def limited() -> Any:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.of.limits.body:
                return {"type": "http.request", "body": b"", "more_body": False}
            return message

        return limited
