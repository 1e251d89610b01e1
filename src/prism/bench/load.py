"""Load for a service on 127.0.0.1: events that ask for recommendations, at full speed or at a rate."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prism.errors import InputError
from prism.recommend.serve.client import Connection, connect, request_bytes

HOST = "127.0.0.1"
# Connections at a rate: more than are ever busy at once, so that no request waits behind another's answer.
CONNECTIONS = 64


class Load(NamedTuple):
    """What was measured."""

    seconds: list[float]
    """Of each pair: from when it was to be sent until its answer was there."""
    wall: float

    @property
    def rate(self) -> float:
        return len(self.seconds) / self.wall

    def __add__(self, more: "Load") -> "Load":  # type: ignore[override]
        return Load(self.seconds + more.seconds, self.wall + more.wall)

    def cuts(self) -> list[float]:
        """Median, 90th and 99th percentile in ms."""
        return [float(cut) for cut in np.percentile(np.array(self.seconds) * 1e3, [50, 90, 99])]


@contextmanager
def running(model: Path, store: str, *more: str) -> Iterator[int]:
    """A service in a process of its own, for as long as the body takes; gives its port."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        port = int(one.getsockname()[1])
    command = [sys.executable, "-m", "prism.cli", "serve", str(model), "--port", str(port), "--store", store, *more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _until_ready(process, port)
        yield port
    finally:
        process.terminate()
        process.wait()


def _until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            raise InputError("the service did not start: pip install 'prism-sequence[serve]'")
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise InputError("the service did not start within two minutes")


class Users:
    """Events of random users, called by `name` and a number: ids are never repeated."""

    def __init__(self, items: int, users: int, seed: int = 0, name: str = "u"):
        rng = np.random.default_rng(seed)
        self._items, self._users = (
            rng.integers(items, size=1 << 16).tolist(),
            rng.integers(users, size=1 << 16).tolist(),
        )
        self._run, self._n, self._name = f"{seed}-{time.time_ns()}", 0, name

    def pair(self) -> bytes:
        n, self._n = self._n, self._n + 1
        user, item = self._users[n & 0xFFFF], self._items[(n * 7) & 0xFFFF]
        event = f'{{"user":"{self._name}{user}","item":"{item}","id":"{self._run}-{n}"}}'
        return request_bytes("POST", "/events", f'{{"events":[{event}],"recommend":{{"k":10}}}}'.encode())


async def full_speed(port: int, users: Users, seconds: float, clients: int) -> Load:
    """So many clients, each of which sends when it is answered."""
    taken: list[float] = []
    begin = time.perf_counter()

    async def client() -> None:
        connection = await connect(HOST, port)
        while (start := time.perf_counter()) < begin + seconds:
            await _answered(connection, users.pair())
            taken.append(time.perf_counter() - start)
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return Load(taken, time.perf_counter() - begin)


async def at_rate(port: int, users: Users, seconds: float, rate: float, seed: int = 0) -> Load:
    """Pairs at random moments, so many per second on average, whether earlier ones are answered or not."""
    connections = [await connect(HOST, port) for _ in range(CONNECTIONS)]
    moments = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, size=int(rate * seconds))).tolist()
    taken: list[float] = []
    waiting: set[asyncio.Future[None]] = set()
    begin = time.perf_counter()

    async def pair(connection: Connection, meant: float) -> None:
        await _answered(connection, users.pair())
        taken.append(time.perf_counter() - begin - meant)

    for meant in moments:
        while (left := meant - (time.perf_counter() - begin)) > 0:
            await asyncio.sleep(left)
        connection = next((one for one in connections if one.idle), connections[0])
        connections.remove(connection)
        connections.append(connection)
        task = asyncio.ensure_future(pair(connection, meant))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
    await asyncio.gather(*waiting)
    wall = time.perf_counter() - begin
    for connection in connections:
        connection.close()
    return Load(taken, wall)


async def give_histories(port: int, items: int, users: int, history: int, name: str = "u") -> None:
    """Every user, called as in `Users`, gets so many events at once."""
    rng, connection = np.random.default_rng(1), await connect(HOST, port)
    for user in range(users):
        codes = rng.integers(items, size=history).tolist()
        for start in range(0, history, 1000):
            events = [{"user": f"{name}{user}", "item": str(code)} for code in codes[start : start + 1000]]
            await _answered(connection, request_bytes("POST", "/events", json.dumps({"events": events}).encode()))
    connection.close()


async def _answered(connection: Connection, request: bytes) -> None:
    reply = await connection.request(request)
    if reply.status != 200:
        raise InputError(f"the service answered {reply.body[:200].decode()}")
