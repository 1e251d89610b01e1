"""`prism bench serve`: pairs of event and recommendation per second, in process and over HTTP, all on disk."""

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from prism.bench.measure import threads
from prism.config import at_least
from prism.display.tables import show
from prism.errors import InputError
from prism.recommend.config import FitConfig
from prism.recommend.data.splits import split
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.export import export
from prism.recommend.pool import SessionPool
from prism.recommend.recommender import Recommender


def serve(
    items: int = 3706,
    users: int = 500,
    dim: int = 64,
    seconds: float = 10.0,
    clients: int = 8,
    history: int = 0,
) -> None:
    """Live users at ML-1M's size: in process, and over HTTP on 127.0.0.1 with the client on the same machine.

    Args:
        items: Items of the model.
        users: Users whose events are sent, at random.
        dim: Width of the model.
        seconds: How long to send.
        clients: Connections, each with one request at a time.
        history: Events that every user has before the clock starts.
    """
    at_least("clients", clients, 1)
    at_least("users", users, 1)
    if not seconds > 0:
        raise InputError(f"seconds must be above 0, got {seconds}")
    config = FitConfig(dim=dim, protocol="leave-one-out")
    made = Recommender._untrained(split(synthetic_log(200, items, 20 * items), config.protocol), config)
    made.fit_experts()
    with threads(1):
        rows = _in_process(made)
    with TemporaryDirectory() as folder:
        export(made, Path(folder) / "model")
        taken, wall = _over_http(Path(folder), made.model.items, users, seconds, clients, history)
    cuts = np.percentile(np.array(taken) * 1e3, [50, 90, 99])
    rows.append(["over HTTP, pairs per second", f"{len(taken) / wall:,.0f}"])
    rows.append(["its median, 90th and 99th percentile", "  ".join(f"{cut:.1f}" for cut in cuts) + " ms"])
    title = f"{made.model.items:,} items, D={dim}, {users} users, {clients} connections, {history} events before"
    show(title, ["event + ten recommendations", "measured"], rows)


def _in_process(made: Recommender) -> list[list[str]]:
    rng, session, pool = np.random.default_rng(0), made.session(), SessionPool(made, 1024)
    ids, group = made.log.item_ids[: made.model.items], list(range(256))

    def one() -> None:
        session.update(ids[rng.integers(len(ids))])
        session.recommend(10)

    def batch() -> None:
        pool.update(group, ids[rng.integers(len(ids), size=len(group))].tolist())

    alone, together = _median(one, 300), _median(batch, 30)
    return [
        ["one user in process, median", f"{alone * 1e3:.2f} ms"],
        ["batches of 256 users, one thread", f"{len(group) / together:,.0f} events/s"],
    ]


def _median(work: Any, times: int) -> float:
    work()
    clock = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        clock.append(time.perf_counter() - start)
    return statistics.median(clock)


def _over_http(
    folder: Path, items: int, users: int, seconds: float, clients: int, history: int
) -> tuple[list[float], float]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    words = [sys.executable, "-m", "prism.cli", "serve", str(folder / "model"), "--port", str(port)]
    process = subprocess.Popen([*words, "--store", str(folder / "events.db")], stdout=subprocess.DEVNULL)
    try:
        return asyncio.run(_load(process, port, items, users, seconds, clients, history))
    finally:
        process.terminate()
        process.wait()


async def _load(
    process: Any, port: int, items: int, users: int, seconds: float, clients: int, history: int
) -> tuple[list[float], float]:
    await _until_ready(process, port)
    rng = np.random.default_rng(0)
    for user in range(users if history else 0):
        codes = rng.integers(items, size=history).tolist()
        for start in range(0, history, 1000):
            await _one(port, [(f"u{user}", code) for code in codes[start : start + 1000]])
    taken: list[float] = []
    end = time.perf_counter() + seconds
    begin = time.perf_counter()
    await asyncio.gather(*(_client(port, n, items, users, end, taken) for n in range(clients)))
    return taken, time.perf_counter() - begin


async def _client(port: int, seed: int, items: int, users: int, end: float, taken: list[float]) -> None:
    rng = np.random.default_rng((1, seed))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    n = 0
    while time.perf_counter() < end:
        event = {"user": f"u{rng.integers(users)}", "item": str(rng.integers(items)), "id": f"{seed}-{n}"}
        start = time.perf_counter()
        await _request(reader, writer, {"events": [event], "recommend": {"k": 10}})
        taken.append(time.perf_counter() - start)
        n += 1
    writer.close()


async def _one(port: int, events: list[tuple[str, int]]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await _request(reader, writer, {"events": [{"user": user, "item": str(item)} for user, item in events]})
    writer.close()


async def _request(reader: Any, writer: Any, body: Any) -> None:
    content = json.dumps(body).encode()
    head = (
        f"POST /events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(answer.partition(b"content-length:")[2].split()[0])
    text = await reader.readexactly(length)
    if not answer.startswith(b"http/1.1 200"):
        raise InputError(f"the service answered {text[:200].decode()}")


async def _until_ready(process: Any, port: int) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            raise InputError("the service did not start: pip install 'prism-sequence[serve]'")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(0.1)
    raise InputError("the service did not start within two minutes")
