"""The service: events that are acknowledged stay, states equal their events, tenants never meet, errors are told."""
# ruff: noqa: E402  (what may be absent is asked for first)

import random
import socket
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("prometheus_client", reason="the service needs it: pip install 'prism-sequence[serve]'")
httpx = pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")

from fastapi.testclient import TestClient
from support import tiny
from support.service import expected, items, models, send, service

from prism.cli import main
from prism.errors import InputError
from prism.recommend.data.splits import split
from prism.recommend.partition import partition
from prism.recommend.recommender import Recommender
from prism.recommend.runs.export import export
from prism.recommend.serve.app import create_app
from prism.recommend.serve.stores.base import StoreError, User
from prism.recommend.serve.stores.sqlite import SqliteStore


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("models"))


def test_an_event_moves_the_recommendations_as_the_history_would(client: TestClient, model: Path) -> None:
    answer = send(client, ("u", "3", "e1", 10), ("u", "9", "e2", 20), recommend={"k": 5})
    assert [one["seq"] for one in answer["events"]] == [1, 2]
    assert items(answer) == expected(model, ["3", "9"], 5)
    asked = client.get("/recommendations", params={"user": "u", "k": 5}).json()
    assert items(asked) == items(answer)
    assert client.post("/recommendations", json={"users": ["u", "new"], "k": 3}).json()["recommendations"][1]["items"]


def test_who_is_asked_about_twice_is_answered_twice(client: TestClient) -> None:
    answer = client.post("/recommendations", json={"users": ["u", "new", "u"], "k": 3}).json()
    assert [one["user"] for one in answer["recommendations"]] == ["u", "new", "u"]


def test_an_event_counts_once_however_often_it_is_sent(client: TestClient, model: Path) -> None:
    for _ in range(3):
        answer = send(client, ("u", "3", "same", 10), ("u", "3", "same", 10), recommend={})
    assert [one["new"] for one in answer["events"]] == [False, False]
    assert client.get("/users/u").json()["events"] == 1
    assert items(answer) == expected(model, ["3"])


def test_a_late_event_takes_its_place_in_time(client: TestClient, model: Path) -> None:
    send(client, ("u", "3", "a", 10), ("u", "9", "b", 30))
    answer = send(client, ("u", "7", "c", 20), recommend={})
    assert items(answer) == expected(model, ["3", "7", "9"])
    told = client.get("/users/u").json()["history"]
    assert [(one["item"], one["time"]) for one in told] == [("3", 10), ("7", 20), ("9", 30)]


def test_states_equal_their_events_after_a_restart_and_a_damaged_snapshot_is_rebuilt(
    model: Path, tmp_path: Path
) -> None:
    rng, history = random.Random(0), []
    made = service(model, tmp_path / "e.db")
    with TestClient(create_app(made)) as test:
        for n in range(23):
            history.append(str(rng.randrange(50)))
            send(test, ("u", history[-1], f"e{n}", n + 1))
        before = made.engine.pool.state(User("default", "u"))
    made.engine.stop()
    for damage in (None, "UPDATE snapshots SET state = x'00112233'", "DELETE FROM snapshots"):
        if damage:
            with sqlite3.connect(tmp_path / "e.db") as db:
                assert db.execute(damage).rowcount == 1
            db.close()
        made = service(model, tmp_path / "e.db")
        with TestClient(create_app(made)) as test:
            assert items(test.get("/recommendations", params={"user": "u"}).json()) == expected(model, history)
            assert made.engine.pool.state(User("default", "u")) == before
            assert made.engine.rebuilt == (damage is not None)
        made.engine.stop()


def test_whoever_is_asked_about_makes_room_for_nobody_else(model: Path, tmp_path: Path) -> None:
    made = service(model, tmp_path / "e.db")
    with TestClient(create_app(made)) as test:
        send(test, ("gone", "5", "g", 10))
        send(test, *(("a", str(3 + n), f"a{n}", 10 + n) for n in range(4)))
        for start in range(0, 1999, 500):  # memory is full: a is there, idle longest
            send(test, *((f"u{n}", "5", f"e{n}", 10) for n in range(start, min(start + 500, 1999))))
        assert User("default", "gone") not in made.engine.states
        asked = test.post("/recommendations", json={"users": ["a", "gone"], "k": 5}).json()
        assert items(asked) == expected(model, ["3", "4", "5", "6"], 5)
        answer = send(test, ("new", "7", "x", 20), ("a", "9", "a4", 20), recommend={"k": 5})
        assert items(answer, 1) == expected(model, ["3", "4", "5", "6", "9"], 5)
    made.engine.stop()


def test_a_damaged_database_is_refused_and_told(model: Path, tmp_path: Path) -> None:
    (tmp_path / "e.db").write_bytes(b"this is no database at all" * 500)
    with pytest.raises(InputError, match=r"cannot be used .*: restore it from a copy"):
        SqliteStore(tmp_path / "e.db")


def test_a_second_service_on_the_same_store_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "e.db")
    with pytest.raises(InputError, match="in use by another process"):
        SqliteStore(tmp_path / "e.db")
    store.close()


def test_a_start_on_a_taken_port_leaves_nothing_behind(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SystemExit) as stop:
            main(["serve", str(model), "--store", str(tmp_path / "e.db"), "--port", str(port)])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"prism: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert not list(tmp_path.iterdir())


def test_a_deleted_user_is_gone_from_the_disk_too(client: TestClient, tmp_path: Path) -> None:
    send(client, ("somebody-to-forget", "3", "e", 5))
    assert client.delete("/users/somebody-to-forget").json() == {"user": "somebody-to-forget", "removed_events": 1}
    assert client.get("/users/somebody-to-forget").status_code == 404
    assert client.service.engine.store.count() == 0


def test_unavailable_items_are_never_recommended_until_they_are_back(client: TestClient) -> None:
    first = items(client.get("/recommendations", params={"user": "u"}).json())[0]
    client.put("/items", json={"items": [{"item": str(first), "available": False}, {"item": "zzz"}]})
    assert first not in items(client.get("/recommendations?user=u&k=50").json())
    client.put("/items", json={"items": [{"item": str(first)}]})
    assert items(client.get("/recommendations", params={"user": "u"}).json())[0] == first


def test_unavailable_items_are_not_similar_to_any(client: TestClient) -> None:
    asked = {"item": "3", "k": 4}
    first, *rest = [one["item"] for one in client.get("/similar", params=asked).json()["items"]]
    client.put("/items", json={"items": [{"item": first, "available": False}]}).raise_for_status()
    assert [one["item"] for one in client.get("/similar", params=asked).json()["items"]][:3] == rest


def test_another_model_answers_from_the_events_without_a_gap(client: TestClient, model: Path) -> None:
    send(client, ("u", "3", "a", 10), ("u", "9", "b", 20))
    assert client.post("/model", json={"name": "two"}).json()["name"] == "two"
    answer = client.get("/recommendations", params={"user": "u"}).json()
    assert items(answer) == expected(model.parent / "two", ["3", "9"])
    assert client.post("/model", json={"name": "../two"}).status_code == 422
    assert client.post("/model", json={"name": "three"}).status_code == 404


def test_a_simple_baseline_is_served_as_a_model_is(client: TestClient, model: Path) -> None:
    config = replace(tiny.CONFIG, heads=2)
    run = Recommender._untrained(split(tiny.log(), config.protocol), config)
    export(run.with_baseline("item-knn"), model.parent / "knn")
    send(client, ("u", "3", "a", 10))
    told = client.post("/model", json={"name": "knn"}).json()
    assert (told["baseline"], told["state_bytes"]) == ("item-knn", 50 * 16)
    history = ["3"]
    for n in range(12):  # past a snapshot
        history.append(str(7 * n % 50))
        answer = send(client, ("u", history[-1], f"k{n}", 20 + n), recommend={"k": 5})
        assert items(answer) == expected(model.parent / "knn", history, 5)
    assert client.get("/because", params={"user": "u", "item": "7"}).status_code == 200
    assert client.post("/model", json={"name": "one"}).json()["baseline"] is None
    assert items(client.get("/recommendations?user=u").json()) == expected(model, history)


def test_a_store_that_fails_is_told_loses_nothing_and_recovers(client: TestClient, model: Path) -> None:
    send(client, ("u", "3", "a", 10))
    store = client.service.engine.store
    working = store.append

    def full(events: Any) -> Any:
        raise StoreError("database or disk is full")

    store.append = full
    answer = client.post("/events", json={"events": [{"user": "u", "item": "9", "id": "b", "time": 20}]})
    assert answer.status_code == 503
    assert "disk is full" in answer.json()["detail"]
    assert client.get("/ready").status_code == 503
    store.append = working
    assert items(client.get("/recommendations?user=u").json()) == expected(model, ["3"])
    answer = send(client, ("u", "9", "b", 20), recommend={})
    assert answer["events"][0]["new"]
    assert items(answer) == expected(model, ["3", "9"])
    assert client.get("/ready").status_code == 200


def test_a_full_disk_refuses_events_whole_and_takes_them_when_there_is_room(client: TestClient, model: Path) -> None:
    send(client, ("u", "3", "a", 10))
    database = client.service.engine.store._db
    database.execute(f"PRAGMA max_page_count={database.execute('PRAGMA page_count').fetchone()[0]}")
    many = [{"user": "u", "item": str(n % 50), "id": f"{n}" * 40, "time": 20 + n} for n in range(900)]
    answer = client.post("/events", json={"events": many})
    assert answer.status_code == 503
    assert "full" in answer.json()["detail"]
    assert client.get("/users/u").json()["events"] == 1  # all of a request, or nothing
    answer = client.post("/events", json={"events": many, "recommend": {}})  # the store was opened anew: room again
    assert all(one["new"] for one in answer.json()["events"])
    assert items(answer.json()) == expected(model, ["3", *(str(n % 50) for n in range(900))])


def test_reasons_similar_items_measures_and_the_page_are_there(client: TestClient) -> None:
    send(client, ("u", "3"), ("u", "9"))
    reasons = client.get("/because", params={"user": "u", "item": "7"}).json()
    assert {one["item"] for one in reasons} == {3, 9}
    assert len(client.get("/similar", params={"item": "3", "k": 4}).json()["items"]) == 4
    text = client.get("/metrics").text
    assert "prism_events_total 2.0" in text
    assert 'path="/events"' in text
    assert "_created" not in text
    page = client.get("/").text
    assert "<title>prism live</title>" in page
    assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/events", "/recommendations", "/similar", "/users/{user}", "/items", "/model", "/health", "/ready"} <= set(
        paths
    )


def test_requests_of_many_threads_are_answered_as_each_alone(client: TestClient, model: Path) -> None:
    streams = {f"u{n}": [str((7 * n + 3 * t) % 50) for t in range(12)] for n in range(6)}

    def work(user: str) -> None:
        for t, item in enumerate(streams[user]):
            send(client, (user, item, f"{user}-{t}", t + 1), recommend={"k": 3})

    threads = [threading.Thread(target=work, args=(user,)) for user in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for user, history in streams.items():
        assert items(client.get("/recommendations", params={"user": user}).json()) == expected(model, history)


def test_a_user_of_another_shard_is_sent_there(model: Path, tmp_path: Path) -> None:
    made = service(model, tmp_path / "e.db", shard=1, shards=2)
    with TestClient(create_app(made)) as test:
        for user in ("alice", "bob", "carol"):
            status = test.get("/recommendations", params={"user": user}).status_code
            assert status == (200 if partition(user, 2) == 1 else 421)
    made.engine.stop()


def test_the_partition_of_a_user_is_the_same_for_ever() -> None:
    assert [partition(user, 8) for user in ("alice", "bob", 42, "42")] == [
        int.from_bytes(__import__("hashlib").blake2b(str(user).encode(), digest_size=8).digest(), "little") % 8
        for user in ("alice", "bob", 42, "42")
    ]
    assert partition("alice", 1) == 0


@pytest.mark.parametrize(("screen", "found"), [(True, True), (True, False), (False, True)])
def test_the_page_is_opened_where_there_is_a_browser_and_its_address_told_where_not(
    screen: bool, found: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from prism.recommend.serve import process

    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    if screen:
        monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(process.sys, "platform", "linux")
    asked: list[str] = []
    monkeypatch.setattr(process.webbrowser, "open", lambda address: asked.append(address) or found)
    process.open_page("0.0.0.0", 8080)
    assert asked == (["http://127.0.0.1:8080/"] if screen else [])
    told = "no browser to open here: go to http://127.0.0.1:8080/" in capsys.readouterr().out
    assert told == (not (screen and found))
