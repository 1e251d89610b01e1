"""A lean HTTP client: a connection that is kept open, on which requests may follow each other without waiting."""

import asyncio
from collections import deque
from typing import NamedTuple


class Reply(NamedTuple):
    """What a server answered."""

    status: int
    kind: str
    """Its content type."""
    body: bytes


class Connection(asyncio.Protocol):
    """One connection. Answers come in the order of the requests."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[Reply]] = deque()
        self._seen = b""
        self._transport: asyncio.Transport | None = None

    @property
    def open(self) -> bool:
        """Whether requests can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def idle(self) -> bool:
        """Whether nothing is waited for."""
        return not self._waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        """Everyone who waits gets the error."""
        self._transport = None
        for one in self._waiting:
            if not one.done():
                one.set_exception(ConnectionError("the connection was closed before the answer came"))
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Hands out every answer that is whole."""
        self._seen += data
        while self._waiting:
            end = self._seen.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._seen[:end].lower()
            size = int(_value(head, b"content-length") or 0)
            if len(self._seen) < end + 4 + size:
                return
            body, self._seen = self._seen[end + 4 : end + 4 + size], self._seen[end + 4 + size :]
            one = self._waiting.popleft()
            if not one.done():
                one.set_result(Reply(int(head[9:12]), _value(head, b"content-type").decode("latin-1"), body))

    def request(self, whole: bytes) -> asyncio.Future[Reply]:
        """Sends a request, head and body (see `request_bytes`)."""
        one: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self._transport is None:
            one.set_exception(ConnectionError("the connection is closed"))
            return one
        self._waiting.append(one)
        self._transport.write(whole)
        return one

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _value(head: bytes, name: bytes) -> bytes:
    at = head.find(b"\r\n" + name + b":")
    return head[at + len(name) + 3 :].partition(b"\r\n")[0].strip() if at >= 0 else b""


async def connect(host: str, port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
    return connection


def request_bytes(method: str, target: str, body: bytes = b"", headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    """A request with a JSON body."""
    more = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"{method} {target} HTTP/1.1\r\nHost: prism\r\n{more}"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode("latin-1") + b"\r\n" + body
