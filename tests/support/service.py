"""A service for tests: in this process, or in one of its own that can be killed."""

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from support import tiny

from prism.recommend.data.items import with_items
from prism.recommend.data.log import Log
from prism.recommend.data.splits import split
from prism.recommend.recommender import Recommender
from prism.recommend.runs.export import export
from prism.recommend.serve.engine import Engine
from prism.recommend.serve.options import Options
from prism.recommend.serve.service import Service
from prism.recommend.serve.stores.address import open_store
from prism.recommend.serve.stores.base import Store

HOST = "127.0.0.1"


def models(folder: Path, log: Log | None = None, **fields: Any) -> Path:
    """Two exported models, `one` and `two`, that nobody trained; gives the first."""
    for n, name in enumerate(("one", "two")):
        config = replace(tiny.CONFIG, heads=2, train=replace(tiny.CONFIG.train, seed=n), **fields)
        made = Recommender._untrained(split(tiny.log() if log is None else log, config.protocol), config)
        if config.experts:
            made.fit_experts()
        export(made, folder / name)
    return folder / "one"


def log_with_table() -> Log:
    """The tiny log, its items in four departments, two of them in two at once, with names, years and shelves."""
    log = tiny.log()
    kinds = ["toys", "kitchen", "garden|toys", "books"]
    return with_items(
        log,
        log.item_ids.tolist(),
        name=[f"item {id_}" for id_ in log.item_ids.tolist()],
        department=[kinds[n % 4] for n in range(log.n_items)],
        year=[1990 + n % 7 for n in range(log.n_items)],
        used=[n % 2 == 0 for n in range(log.n_items)],
    )


def service(model: Path, store: Path | str | Store, device: str = "cpu", **fields: Any) -> Service:
    """In this process; its engine is to be stopped."""
    opened = store if isinstance(store, Store) else open_store(str(store))
    engine = Engine(Recommender.load(model, device=device), opened, capacity=2000, snapshot_every=5)
    engine.warm()
    patient = {"options": Options(timeout=60)}  # a busy machine is no fault
    return Service(engine=engine, folder=model, **patient | fields)


def send(client: Any, *events: tuple, **more: Any) -> Any:
    """Events as (user, item, id, time), the last two if wanted; gives the answer."""
    names = ("user", "item", "id", "time")
    body = {"events": [dict(zip(names, event, strict=False)) for event in events], **more}
    answer = client.post("/events", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def items(answer: Any, n: int = 0) -> list[Any]:
    """The recommended items of the n-th user of an answer."""
    return [one["item"] for one in answer["recommendations"][n]["items"]]


def expected(model: Path, history: list[str], k: int = 10) -> list[Any]:
    """What should be recommended after a history."""
    return [one.item for one in Recommender.load(model).recommend(history=history, k=k)]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def launch(model: Path, store: Path | str, port: int, *more: str, before: tuple[str, ...] = ()) -> subprocess.Popen:
    """The service as a process, on its way."""
    words = [sys.executable, "-m", "prism.cli", "serve", str(model), "--store", str(store), "--port", str(port)]
    patience = () if "--timeout" in more else ("--timeout", "60")  # a busy machine is no fault
    return subprocess.Popen([*before, *words, *patience, *more], env=os.environ | {"OMP_NUM_THREADS": "1"})


def start(model: Path, store: Path | str, port: int, *more: str, before: tuple[str, ...] = ()) -> subprocess.Popen:
    """The service as a process, ready; `before`: a program that runs it."""
    process = launch(model, store, port, *more, before=before)
    for _ in range(1200):
        try:
            if httpx.get(f"http://{HOST}:{port}/ready", timeout=1).status_code == 200:
                return process
        except httpx.HTTPError:
            assert process.poll() is None
        time.sleep(0.1)
    raise AssertionError("the service did not start")


def start_forked(model: Path, store: Path, port: int, snapshot_every: int) -> Any:
    """The same process, but forked from one that has imported everything: for tests that start it very often."""
    from prism.recommend.serve.process import run

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["prism.recommend.serve.process"])
    options = Options(
        store=str(store), host=HOST, port=port, users_in_memory=2000, snapshot_every=snapshot_every, timeout=600.0
    )
    process = context.Process(target=run, args=(model, options))
    process.start()
    for _ in range(6000):
        try:
            if httpx.get(f"http://{HOST}:{port}/ready", timeout=600).status_code == 200:
                return process
        except httpx.HTTPError:
            assert process.is_alive()
        time.sleep(0.02)
    raise AssertionError("the service did not start")


@contextmanager
def running(model: Path, store: Path | str, *more: str, before: tuple[str, ...] = ()) -> Iterator[httpx.Client]:
    """A client of a service in a process of its own."""
    port = free_port()
    process = start(model, store, port, *more, before=before)
    try:
        with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=30) as client:
            client.process = process  # type: ignore[attr-defined]
            yield client
    finally:
        process.terminate()
        process.wait()
