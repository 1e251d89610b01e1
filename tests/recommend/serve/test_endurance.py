"""Under load for long: killed at random moments, nothing acknowledged is lost or counted twice; memory stays flat."""
# ruff: noqa: E402  (what may be absent is asked for first)

import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("httptools", reason="the service needs httptools: pip install 'prism-sequence[serve]'")
httpx = pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")

from support.servers import wait_for
from support.service import HOST, free_port, items, models, service, start, start_forked

from prism.bench.serve import live_model
from prism.recommend.live.user_bytes import unpack_user
from prism.recommend.recommender import Recommender
from prism.recommend.runs.export import export
from prism.recommend.serve.stores.base import User

KILLS = int(os.environ.get("PRISM_KILLS", "100"))
CLIENTS, USERS = 4, 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("models"))


class Client(threading.Thread):
    """Sends events one after the other, each twice, until the service is gone; keeps what was acknowledged."""

    def __init__(self, port: int, kill: int, seed: int, acknowledged: dict[str, tuple[str, int]]):
        super().__init__()
        self.port, self.kill, self.rng, self.acknowledged = (
            port,
            kill,
            random.Random(f"{kill} {seed}"),
            acknowledged,
        )
        self.seed = seed

    def run(self) -> None:
        with httpx.Client(base_url=f"http://{HOST}:{self.port}", timeout=600) as client:
            try:
                for n in range(100_000):
                    user, id_ = f"u{self.rng.randrange(USERS)}", f"{self.kill}-{self.seed}-{n}"
                    when = 10_000 * self.kill + n - self.rng.choice([0, 0, 0, 5])  # some come late
                    event = {"user": user, "item": str(self.rng.randrange(50)), "id": id_, "time": when}
                    for _ in range(2):  # a client that is not sure sends again
                        answer = client.post("/events", json={"events": [event], "recommend": {"k": 3}})
                        self.acknowledged[id_] = (user, answer.json()["events"][0]["seq"])
            except (httpx.HTTPError, json.JSONDecodeError):
                pass


@pytest.mark.slow
def test_killed_at_random_moments_no_acknowledged_event_is_lost_or_applied_twice(model: Path, tmp_path: Path) -> None:
    rng, port = random.Random(0), free_port()
    acknowledged: dict[str, tuple[str, int]] = {}
    for kill in range(KILLS):
        process = start_forked(model, tmp_path / "e.db", port, snapshot_every=3)
        clients = [Client(port, kill + 1, seed, acknowledged) for seed in range(CLIENTS)]
        for one in clients:
            one.start()
        wanted = len(acknowledged) + rng.randrange(40)
        wait_for(lambda wanted=wanted: len(acknowledged) >= wanted, 600)
        time.sleep(rng.uniform(0, 0.01))  # anywhere in a round
        process.kill()
        process.join()
        for one in clients:
            one.join()
    assert len(acknowledged) > 5 * KILLS
    made = service(model, tmp_path / "e.db")
    try:
        _check(made, model, acknowledged)
    finally:
        made.engine.stop()


def _check(made: Any, model: Path, acknowledged: dict[str, tuple[str, int]]) -> None:
    """Against the events on the disk, as a history that was never anywhere else would be encoded."""
    from prism.recommend.serve.requests import Ask, Question

    recommender, engine = Recommender.load(model), made.engine
    for n in range(USERS):
        user = User("default", f"u{n}")
        events = engine.ask(Ask(call=lambda user=user: engine.store.events([user], [0])[0])).result()
        assert sorted(event.seq for event in events) == list(range(1, len(events) + 1))  # none twice, none missing
        assert len({event.id for event in events}) == len(events)
        found = {event.id: event.seq for event in events}
        told = {id_: seq for id_, (who, seq) in acknowledged.items() if who == user.id}
        assert found.items() >= told.items()
        answer = engine.ask(Ask(questions=[Question(user, exclude_seen=False)])).result()
        history = [event.item for event in events]
        wanted = recommender.recommend(history=history, exclude_seen=False)  # soon every item has been taken
        assert [recommender.log.item_ids[code] for code in answer.found[0].codes] == [one.item for one in wanted]
        ours = unpack_user(engine.pool.state(user), engine.recommender)
        again = unpack_user(
            recommender.session(history=history, times=[event.time for event in events]).state(), recommender
        )
        for mine, theirs in zip(ours.arrays, again.arrays, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=2e-5)
        assert ours.facts.tolist() == again.facts.tolist()
        assert ours.user.taken.tolist() == again.user.taken.tolist()


def resident(pid: int) -> float:
    """Memory of a process in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


@pytest.mark.slow
@pytest.mark.parametrize("warm", [20, 620])
def test_memory_is_flat_over_two_hundred_thousand_events_of_five_thousand_users(tmp_path: Path, warm: int) -> None:
    """At ML-1M's size, after `warm` events per user: while nearly every item is new to its user, and when what is kept
    of a user is full, at 512 distinct items, which 620 events have."""
    made, users, batch = live_model(3706, 64, 2), 5000, 1000
    export(made, tmp_path / "model")
    rng, port, seen = np.random.default_rng(0), free_port(), []
    process = start(tmp_path / "model", tmp_path / "e.db", port, "--timeout", "600")
    taken: set[tuple[int, int]] = set()
    try:
        with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=600) as client:
            for n in range(warm * users // batch + 200):
                who, what = rng.integers(users, size=batch).tolist(), rng.integers(made.model.items, size=batch)
                names = made.log.item_ids[what].tolist()
                events = [{"user": f"u{a}", "item": str(b)} for a, b in zip(who, names, strict=True)]
                client.post("/events", json={"events": events}).raise_for_status()
                answer = client.post("/recommendations", json={"users": [f"u{a}" for a in who[:20]]})
                assert len(items(answer.json())) == 10
                if n == warm * users // batch + 20:
                    before = len(taken)
                taken.update(zip(who, what.tolist(), strict=True))
                if n >= warm * users // batch:
                    seen.append(resident(process.pid))
    finally:
        process.terminate()
        process.wait()
    start_mb, end_mb, new = float(np.median(seen[:20])), max(seen[-20:]), len(taken) - before
    growth = end_mb / start_mb - 1
    print(f"{warm} events per user: {start_mb:.0f} MB, {growth:+.2%} after 200,000 more, {new:,} of them of new items")
    assert growth < 0.02
