"""uvicorn's HTTP protocol with two more limits: a client slow to say what it wants, or that says too much, is cut."""

from asyncio import TimerHandle
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 10.0
HEADER_BYTES = 64 * 1024


class Protocol(HttpToolsProtocol):  # type: ignore[misc]
    """One connection."""

    _timer: TimerHandle | None = None
    _bytes = 0

    def connection_made(self, transport: Any) -> None:
        """The first request's headers are waited for from now on."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts what comes before the headers are whole."""
        if self._timer is not None:
            self._bytes += len(data)
        super().data_received(data)
        if self._timer is not None and self._bytes > HEADER_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A further request on this connection."""
        super().on_message_begin()
        if self._timer is None:
            self._wait()

    def on_headers_complete(self) -> None:
        """What follows is the body, which has limits of its own."""
        self._stop()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._bytes = 0
        self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
