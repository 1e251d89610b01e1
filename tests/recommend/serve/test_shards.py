"""Several processes, one address: whoever is asked, every user is answered by the shard that has the user's events."""
# ruff: noqa: E402  (what may be absent is asked for first)

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("httptools", reason="the service needs httptools: pip install 'prism-sequence[serve]'")
httpx = pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")

from fastapi.testclient import TestClient
from support.servers import wait_for
from support.service import HOST, expected, free_port, items, launch, models, running, send, service

from prism.cli import main
from prism.recommend.partition import partition
from prism.recommend.serve import router
from prism.recommend.serve.app import create_app
from prism.recommend.serve.keys import add_key
from prism.recommend.serve.options import SECRET, Options
from prism.recommend.serve.peers import Peers

USERS = [f"user-{n}" for n in range(6)] + ["a/b", "c%2Fd ü"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("models"))


def test_a_shard_that_cannot_start_or_is_killed_ends_all_and_is_no_success(model: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "prism.cli", "serve", str(tmp_path), "--store", str(tmp_path / "e.db")]
    ended = subprocess.run([*words, "--shards", "2"], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2
    assert "is not an exported model" in ended.stderr
    with running(model, tmp_path / "e.db", "--shards", "2") as client:
        parent = client.process
        child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[0])
        os.kill(child, signal.SIGKILL)
        assert parent.wait(timeout=60) == 1
        with pytest.raises(httpx.TransportError):
            client.get("/health")


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """Where someone takes connections and never says anything."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        one.listen(50)
        yield one.getsockname()


def test_a_shard_that_is_silent_is_given_up_and_told(
    model: Path, tmp_path: Path, silent: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "MODEL_SECONDS", 0.5)
    peers, options = Peers([(HOST, 1), silent], 0), Options(timeout=0.2)
    made = service(model, tmp_path / "e.db", shards=2, peers=peers, options=options)
    with TestClient(create_app(made)) as test:
        theirs = next(user for user in USERS if partition(user, 2) == 1)
        assert test.get(f"/users/{quote(theirs, safe='')}").status_code == 504
        ready = test.get("/ready")
        assert (ready.status_code, ready.json()["detail"]) == (503, "shard 1 did not answer within 0.2 seconds")
        told = test.put("/items", json={"items": [{"item": "3", "available": False}]})
        assert (told.status_code, told.json()["detail"]) == (504, "shard 1 did not answer within 0.2 seconds")
        swapped = test.post("/model", json={"name": "two"})
        assert (swapped.status_code, swapped.json()["detail"]) == (504, "shard 1 did not answer within 0.5 seconds")
    assert theirs not in made.measures.text(made.engine).decode()
    made.engine.stop()


def test_a_service_that_waits_for_a_silent_shard_ends_when_it_is_told_to(
    model: Path, tmp_path: Path, silent: tuple[str, int]
) -> None:
    port = free_port()
    peers = ("--peers", f"{HOST}:{port}", f"{HOST}:{silent[1]}")
    process = launch(model, tmp_path / "e.db", port, "--shards", "2", "--shard", "0", *peers, "--timeout", "2")
    try:
        wait_for(lambda: answers(port), 120)
        with socket.create_connection((HOST, port)) as waits:
            body = b'{"name": "two"}'
            head = f"POST /model HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            waits.sendall(head.encode() + body)
            time.sleep(0.5)
            process.terminate()
            assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    try:
        return bool(httpx.get(f"http://{HOST}:{port}/health", timeout=1).status_code == 200)
    except httpx.HTTPError:
        return False


def test_what_a_shard_passes_on_is_counted_once_and_only_who_knows_the_secret_is_a_shard(
    model: Path, tmp_path: Path
) -> None:
    peers, options = Peers([(HOST, 1), (HOST, 2)], 0, "a secret"), Options(timeout=60, max_rate=0.001)
    made = service(model, tmp_path / "e.db", shards=2, peers=peers, options=options)
    ours = next(user for user in USERS if partition(user, 2) == 0)
    with TestClient(create_app(made)) as test:

        def status(**headers: str) -> int:
            body = {"users": [ours], "k": 3}
            return int(test.post("/recommendations", json=body, headers={"X-Prism-Shard": "1", **headers}).status_code)

        assert status() == 200  # all that may come in a while
        assert status() == status(**{"X-Prism-Secret": "guess"}) == status(**{"X-Prism-Secret": ""}) == 429
        assert [status(**{"X-Prism-Secret": "a secret"}) for _ in range(5)] == [200] * 5
    made.engine.stop()
    assert not Peers([(HOST, 1), (HOST, 2)], 0).sent("")  # where there is no secret, nobody knows it


def test_a_limit_of_shards_on_several_machines_needs_a_secret_that_they_share(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    words = ["--store", str(tmp_path / "e.db"), "--shards", "2", "--shard", "0", "--max-rate", "5"]
    with pytest.raises(SystemExit) as stop:
        main(["serve", str(model), *words, "--peers", "first:8080", "second:8080"])
    assert stop.value.code == 2
    assert f"set {SECRET} to the same long random text on every machine" in capsys.readouterr().err


def test_a_request_that_is_divided_is_taken_whole_where_another_shard_has_had_enough(
    model: Path, tmp_path: Path
) -> None:
    users = [next(user for user in USERS if partition(user, 2) == n) for n in (0, 1)]
    body = {"events": [{"user": user, "item": "3"} for user in users]}
    with running(model, tmp_path / "e.db", "--shards", "2", "--max-rate", "10") as client, ExitStack() as stack:
        port = client.base_url.port
        first, second = (
            stack.enter_context(httpx.Client(base_url=f"http://{HOST}:{port + n}", timeout=30)) for n in (1, 2)
        )
        wait_for(lambda: first.get("/health").status_code == 200)
        wait_for(lambda: second.get("/health").status_code == 429)
        assert first.post("/events", json=body).status_code == 200
        forged = {"X-Prism-Shard": "0", "X-Prism-Secret": "guess"}  # counted like anyone's: it has enough at some time
        wait_for(lambda: second.get("/health", headers=forged).status_code == 429)


def test_any_shard_takes_any_request(model: Path, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "shop")
    assert {partition(user, 2) for user in USERS} == {0, 1}
    options = ("--shards", "2", "--keys", str(tmp_path / "keys"))
    with running(model, tmp_path / "e.db", *options) as client, ExitStack() as stack:
        port, head = client.base_url.port, {"X-API-Key": key}
        ours = [
            stack.enter_context(httpx.Client(base_url=f"http://{HOST}:{port + n}", headers=head, timeout=30))
            for n in (0, 1, 2)
        ]
        assert ours[1].post("/events", json={"events": []}, headers={"X-API-Key": "wrong"}).status_code == 401
        for n, user in enumerate(USERS):
            for t in range(3):
                answer = send(ours[(n + t) % 3], (user, str(n + t), f"{user}-{t}", t + 1), recommend={"k": 4})
            assert items(answer) == expected(model, [str(n), str(n + 1), str(n + 2)], 4)
        many = send(ours[1], *((user, "30", f"{user}-last", 9) for user in USERS), recommend={"k": 3})
        assert [one["seq"] for one in many["events"]] == [4] * len(USERS)
        assert [one["user"] for one in many["recommendations"]] == USERS
        ahead = [{"user": user, "item": "3", "time": 10**11 * (user == USERS[0])} for user in USERS]
        assert ours[1].post("/events", json={"events": ahead}).status_code == 422  # no shard has taken its part
        for one in ours:
            asked = one.post("/recommendations", json={"users": USERS[::-1], "k": 3}).json()
            assert asked["recommendations"] == many["recommendations"][::-1]
            twice = one.post("/recommendations", json={"users": [*USERS, USERS[0]], "k": 3}).json()
            assert twice["recommendations"] == [*many["recommendations"], many["recommendations"][0]]
            for user in USERS:
                assert one.head(f"/users/{quote(user, safe='')}").status_code == 405  # no such method here: at once
                assert one.get(f"/users/{quote(user, safe='')}").json()["events"] == 4
                assert {why["item"] for why in one.get("/because", params={"user": user, "item": 7}).json()} >= {30}
        first = items(many)[0]
        ours[2].put("/items", json={"items": [{"item": str(first), "available": False}]}).raise_for_status()
        named = {"items": [{"item": "31", "name": "Thirty-one"}]}
        ours[1].put("/items", json=named).raise_for_status()
        for one in ours:
            assert one.get("/items", params={"search": "thirty"}).json()[0]["item"] == "31"
        assert ours[1].post("/model", json={"name": "two"}).json()["name"] == "two"
        for one in ours[1:]:
            assert one.get("/model").json()["name"] == "two"
            assert all(str(first) != i["item"] or not i["available"] for i in one.get("/items?limit=50").json())
            assert one.get("/ready").status_code == 200
        assert ours[1].delete("/users/user-0").json()["removed_events"] == 4
        assert ours[2].get("/users/user-0").status_code == 404
        inside = {"X-Prism-Shard": "0"}  # a request that was shared out already is not passed on
        assert {one.get("/users/user-1", headers=inside).status_code for one in ours[1:]} == {200, 421}
    for n in range(2):
        with sqlite3.connect(tmp_path / f"e-{n}of2.db") as db:
            kept = {user for (user,) in db.execute("SELECT DISTINCT user FROM events")}
        db.close()
        assert kept == {user for user in USERS[1:] if partition(user, 2) == n}
