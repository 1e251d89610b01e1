"""Every store keeps each event once, tells how far it goes, and comes back after a crash: on the real servers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("prometheus_client", reason="the service needs it: pip install 'prism-sequence[serve]'")
pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")

from fastapi.testclient import TestClient
from support.servers import Postgres, Redis, wait_for
from support.service import expected, items, log_with_table, models, send, service

from prism.errors import InputError
from prism.recommend.serve.app import create_app
from prism.recommend.serve.stores.address import open_store
from prism.recommend.serve.stores.base import NOBODY, Event, Item, Kept, Snapshot, Store, Stored, User, Version

A, B = User("a", "u"), User("b", "u")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=["sqlite", "redis", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A file's path, or a server."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sqlite":
        yield folder / "events.db"
        return
    server = (Redis if request.param == "redis" else Postgres)(folder)
    yield server
    server.stop()


def address(place: Any) -> str:
    return str(getattr(place, "address", place))


@pytest.fixture
def store(place: Any) -> Iterator[Store]:
    made = open_store(address(place))
    yield made
    for tenant in ("a", "b"):
        for name in ("u", "v", "w:x"):
            made.forget(User(tenant, name))
    made.set_items("a", [Item("7", True), Item("9", True)])
    made.close()


def test_an_event_is_kept_once_in_its_tenant_and_numbered_in_order_of_arrival(store: Store) -> None:
    first = [Event(A, "1", "x", 10), Event(A, "2", "y", 30), Event(A, "1", "x", 10), Event(B, "1", "z", 5)]
    assert store.append(first) == [Stored(1, True), Stored(2, True), Stored(1, False), Stored(1, True)]
    assert store.append([Event(A, "2", "other", 1), Event(A, "3", "é'\"\\", 20)]) == [Stored(2, False), Stored(3, True)]
    theirs, ours = store.events([B, A], [0, 0])
    assert theirs == [Kept(1, "1", "z", 5)]
    assert ours == [Kept(1, "1", "x", 10), Kept(3, "3", "é'\"\\", 20), Kept(2, "2", "y", 30)]
    assert store.events([A], [2]) == [[Kept(3, "3", "é'\"\\", 20)]]
    assert store.versions([A, User("a", "nobody"), B]) == [Version(3, "3"), NOBODY, Version(1, "1")]
    assert store.count() == 4


def test_names_that_could_be_mixed_up_are_not(store: Store) -> None:
    store.append([Event(User("a", "w:x"), "1", "x", 1)])
    assert store.versions([User("a:w", "x"), User("a", "w:x")]) == [NOBODY, Version(1, "1")]


def test_a_snapshot_is_of_one_model_and_a_user_is_forgotten_whole(store: Store) -> None:
    store.append([Event(A, "1", "x", 10), Event(B, "1", "x", 10)])
    one = Snapshot(Version(1, "1"), 10, bytes(range(256)))
    store.save("model", [(A, one), (B, one)])
    store.save("model", [(A, one._replace(time=11))])
    assert store.snapshots([A, User("a", "v")], "model") == [one._replace(time=11), None]
    assert store.snapshots([A], "another") == [None]
    assert store.forget(A) == 1
    assert store.versions([A, B]) == [NOBODY, Version(1, "1")]
    assert store.snapshots([A, B], "model") == [None, one]
    assert store.append([Event(A, "1", "y", 1)]) == [Stored(1, True)]


def test_a_state_of_events_that_are_gone_is_not_kept(store: Store) -> None:
    """Two services share a store: one forgets a user while the other is about to keep what it knows."""
    store.append([Event(A, "1", "x", 10), Event(A, "2", "y", 20)])
    late = Snapshot(Version(2, "2"), 20, b"late")
    store.forget(A)
    store.save("model", [(A, late)])
    store.append([Event(A, "3", "x", 10), Event(A, "4", "y", 20)])
    store.save("model", [(A, late)])
    assert store.snapshots([A], "model") == [None]
    store.save("model", [(A, late._replace(version=Version(2, "4")))])
    assert store.snapshots([A], "model") == [late._replace(version=Version(2, "4"))]


def test_what_is_said_of_items_is_their_tenants_alone_and_a_change_leaves_the_rest(store: Store) -> None:
    version = store.items_version("a")
    kind = (("kind", "toys|é'\"\\"), ("year", "1999"))
    store.set_items("a", [Item("7", False), Item("9", False, "Nine"), Item("new", None, "é'\"\\", kind)])
    store.set_items("a", [Item("9", True), Item("7", None, "Seven"), Item("new", None, None, (("kind", "x"),))])
    for _ in range(2):
        assert sorted(store.items("a")) == [
            Item("7", False, "Seven"),
            Item("9", True, "Nine"),
            Item("new", True, "é'\"\\", (("kind", "x"),)),
        ]
        assert store.items("b") == []
        store.reopen()
    assert store.exclusive or store.items_version("a") == version + 2


def test_what_is_stored_is_there_when_it_is_opened_again(place: Any, store: Store) -> None:
    store.append([Event(A, "1", "x", 10)])
    store.reopen()
    assert store.versions([A]) == [Version(1, "1")]


def test_two_services_on_one_server_answer_for_the_same_user_as_one(place: Any, model: Path) -> None:
    if isinstance(place, Path):
        pytest.skip("a file belongs to one service")
    made = [service(model, address(place)) for _ in range(2)]
    history: list[str] = []
    with TestClient(create_app(made[0])) as one, TestClient(create_app(made[1])) as two:
        for n in range(14):
            client = (one, two, two)[n % 3]
            history.append(str((11 * n) % 50))
            send(client, ("shared", history[-1], f"shared-{n}", n + 1))
            for asked in (one, two):
                assert items(asked.get("/recommendations?user=shared").json()) == expected(model, history)
        assert two.delete("/users/shared").json()["removed_events"] == 14
        assert items(one.get("/recommendations?user=shared").json()) == expected(model, [])
    for each in made:
        each.engine.stop()


def test_what_is_told_of_items_through_one_service_is_soon_seen_through_another(
    place: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if isinstance(place, Path):
        pytest.skip("a file belongs to one service")
    model = models(tmp_path_factory.mktemp("tables"), log_with_table())
    made = [service(model, address(place)) for _ in range(2)]
    new = {"item": "new", "name": "Wooden horse", "features": {"department": "toys"}}

    def names(client: TestClient) -> dict[Any, Any]:
        found = client.get("/recommendations?user=nobody&k=100").json()["recommendations"][0]["items"]
        return {one["item"]: one["name"] for one in found}

    with TestClient(create_app(made[0])) as one, TestClient(create_app(made[1])) as two:
        assert "new" not in names(two)
        one.put("/items", json={"items": [new, {"item": "7", "available": False}]}).raise_for_status()
        assert names(one)["new"] == "Wooden horse"
        wait_for(lambda: names(two).get("new") == "Wooden horse" and 7 not in names(two))
        two.put("/items", json={"items": [{"item": "new", "name": "Tin horse"}, {"item": "7"}]}).raise_for_status()
        wait_for(lambda: names(one).get("new") == "Tin horse" and 7 in names(one))
        one.put("/items", json={"items": [{"item": "new", "available": False}]}).raise_for_status()
    for each in made:
        each.engine.stop()


def test_a_server_that_goes_away_is_told_and_when_it_is_back_nothing_acknowledged_is_missing(
    place: Any, model: Path
) -> None:
    if isinstance(place, Path):
        pytest.skip("a file does not go away by itself")
    made = service(model, place.address)
    with TestClient(create_app(made)) as client:
        send(client, ("gone", "3", "gone-1", 10), ("gone", "9", "gone-2", 20))
        place.kill()
        lost = {"events": [{"user": "gone", "item": "7", "id": "gone-3", "time": 30}]}
        for _ in range(2):
            answer = client.post("/events", json=lost)
            assert answer.status_code == 503
            assert "the store does not take this now" in answer.json()["detail"]
        assert client.get("/ready").status_code == 503
        place.start()
        wait_for(lambda: client.get("/ready").status_code == 200)  # found out without a request that writes
        assert items(client.get("/recommendations?user=gone").json()) == expected(model, ["3", "9"])
        assert client.post("/events", json=lost).json()["events"][0] == {
            "id": "gone-3", "seq": 3, "new": True, "known": True,
        }  # fmt: skip
        assert items(client.get("/recommendations?user=gone").json()) == expected(model, ["3", "9", "7"])
        client.delete("/users/gone")
    made.engine.stop()


def test_a_redis_that_may_forget_is_refused_unless_that_is_asked_for(tmp_path: Path) -> None:
    server = Redis(tmp_path)
    server.kill()
    server.start("--appendonly", "no")
    try:
        with pytest.raises(InputError, match="may lose what it has acknowledged: start redis-server with"):
            open_store(server.address)
        open_store(f"{server.address}?relaxed=1").close()
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("redis://127.0.0.1:1/0", "cannot be used"),
        ("postgresql://x:secret@127.0.0.1:1/db", "cannot be used"),
        ("mysql://x", "give a file, redis"),
    ],
)
def test_a_store_that_cannot_be_opened_is_told_without_its_password(address: str, said: str) -> None:
    pytest.importorskip(address.partition(":")[0].replace("postgresql", "psycopg").replace("mysql", "json"))
    with pytest.raises(InputError, match=said) as error:
        open_store(address)
    assert "secret" not in str(error.value)
