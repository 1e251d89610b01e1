"""What a tenant tells of items: names and features are shown, filtered by and kept; by them new items are placed."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("prometheus_client", reason="the service needs it: pip install 'prism-sequence[serve]'")
pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")

from fastapi.testclient import TestClient
from support.service import items, log_with_table, models, send, service

from prism.errors import InputError
from prism.recommend.data.items import with_items
from prism.recommend.data.log import without_events
from prism.recommend.data.merge import merge
from prism.recommend.data.splits import split
from prism.recommend.live.placed import Places
from prism.recommend.model.experts import EXPERTS
from prism.recommend.recommender import Recommender
from prism.recommend.runs.export import export
from prism.recommend.runs.update import grown
from prism.recommend.serve import catalogues
from prism.recommend.serve.app import create_app
from prism.recommend.serve.catalogue import _cell
from prism.recommend.serve.keys import add_key, read_keys
from prism.recommend.serve.stores.base import Item, User

NEW = {"item": "new-1", "name": "Wooden horse", "features": {"department": "toys", "year": 1993}}
KINDS: list[dict[str, Any]] = [
    {},
    {"features": ("department", "name:words")},
    {"features": ("department",), "experts": EXPERTS, "projection": True, "item_bias": True},
    {"features": ("department",), "context": 5},
]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("models"), log_with_table(), **request.param)


def tell(client: Any, *told: dict[str, Any], **more: Any) -> Any:
    answer = client.put("/items", json={"items": list(told)}, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def recommended(client: Any, user: str = "u", **more: Any) -> dict[Any, Any]:
    """All recommendations of a user, by item."""
    answer = client.post("/recommendations", json={"users": [user], "k": 100, **more})
    assert answer.status_code == 200, answer.text
    return {one["item"]: one for one in answer.json()["recommendations"][0]["items"]}


def test_an_item_that_the_model_does_not_know_is_recommended_at_once_by_its_features(client: TestClient) -> None:
    send(client, ("u", "3", "a", 10), ("u", "8", "b", 20))
    before = recommended(client)
    told = tell(client, NEW)
    assert told == [{"item": "new-1", "available": True, "known": False, "recommended": True}]
    after = recommended(client)
    assert after.keys() == before.keys() | {"new-1"}
    assert after["new-1"]["name"] == "Wooden horse"
    assert [item for item in after if item != "new-1"] == list(before)  # the others' order is as it was
    assert tell(client, NEW) == told  # as often as it likes
    assert recommended(client) == after
    answer = send(client, ("u", "9", "c", 30), recommend={"k": 100, "allow": ["new-1", "7"]})
    assert set(items(answer)) == {"new-1", 7}


def test_a_placed_item_stands_where_an_update_would_let_it_begin(model: Path) -> None:
    made = Recommender.load(model, device="cpu")
    table = {"name": ["Wooden item"], "department": ["toys|books"], "year": [1991], "used": [True]}
    merged = merge(made.log, with_items(without_events(np.array(["new"], dtype=object)), ["new"], **table)).log
    larger, started = grown(made.model, merged, made.config.features)
    assert started["items with the same features"] == 1
    place = Places(made).place({name: cells[0] for name, cells in table.items()})
    assert place is not None
    with torch.no_grad():
        np.testing.assert_allclose(place.row, larger.table[-1].numpy(), atol=1e-6)


def test_a_placed_item_that_was_taken_is_not_recommended_again(client: TestClient) -> None:
    tell(client, NEW, {**NEW, "item": "new-2"})
    assert {"new-1", "new-2"} <= recommended(client).keys()
    answer = send(client, ("u", "3", "a", 10), ("u", "new-1", "b", 20), recommend={"k": 100})
    assert [one["known"] for one in answer["events"]] == [True, False]
    assert "new-1" not in items(answer)
    assert "new-2" in items(answer)
    send(client, ("u", "new-2", "c", 30))
    assert not {"new-1", "new-2"} & recommended(client).keys()
    assert {"new-1", "new-2"} <= recommended(client, exclude_seen=False).keys()
    assert {"new-1", "new-2"} <= recommended(client, "another").keys()
    assert "new-1" not in recommended(client, "u")
    history = client.get("/users/u").json()["history"]
    assert [one["name"] for one in history] == ["item 3", "Wooden horse", "Wooden horse"]


def test_a_name_is_shown_wherever_the_item_is(client: TestClient) -> None:
    send(client, ("u", "3", "a", 10))
    tell(client, {"item": "3", "name": "Three"}, {"item": "7", "name": "Seven"}, NEW)
    assert recommended(client)[7]["name"] == "Seven"
    assert recommended(client)[9]["name"] == "item 9"
    near = client.get("/similar", params={"item": "3", "k": 60}).json()["items"]
    names = {one["item"]: one["name"] for one in near}
    assert (names[7], names[9], names["new-1"]) == ("Seven", "item 9", "Wooden horse")
    assert client.get("/because", params={"user": "u", "item": "7"}).json()[0]["name"] == "Three"
    assert client.get("/users/u").json()["history"][0]["name"] == "Three"
    assert [one["item"] for one in client.get("/items", params={"search": "WOODEN"}).json()] == ["new-1"]
    assert [one["item"] for one in client.get("/items", params={"search": "seven"}).json()] == ["7"]


def test_what_is_near_a_placed_item_and_why_it_is_recommended_can_be_asked(client: TestClient) -> None:
    send(client, ("u", "3", "a", 10), ("u", "8", "b", 20))
    tell(client, NEW)
    near = client.get("/similar", params={"item": "new-1", "k": 60}).json()["items"]
    assert len(near) == 50
    assert "new-1" not in {one["item"] for one in near}
    reasons = client.get("/because", params={"user": "u", "item": "new-1"}).json()
    assert {one["item"] for one in reasons} == {3, 8}
    whole, known = recommended(client, exclude_seen=False), {"items": ["3", "8"], "times": [10, 20]}
    for one in reasons:  # the score falls by so much without the event
        left = [(item, time) for item, time in zip(*known.values(), strict=True) if item != str(one["item"])]
        user = f"without {one['item']}"
        send(client, *((user, item, f"{user} {item}", time) for item, time in left))
        alone = recommended(client, user, exclude_seen=False)
        assert one["effect"] == pytest.approx(whole["new-1"]["score"] - alone["new-1"]["score"], abs=1e-4)


def test_features_of_items_known_and_unknown_are_filtered_by(client: TestClient) -> None:
    toys = {item for item, one in recommended(client).items() if int(item) % 4 in (0, 2)}
    assert recommended(client, allow={"department": "toys"}).keys() == toys
    tell(client, NEW, {"item": "1", "features": {"department": ["toys", "kitchen"], "year": 2001}})
    assert recommended(client, allow={"department": "toys"}).keys() == toys | {"new-1", 1}
    assert recommended(client, allow={"department": "toys", "year": [1993, "2001"]}).keys() == {
        item for item in toys if (item % 7) == 3
    } | {"new-1", 1}
    assert "new-1" not in recommended(client, deny={"department": ["toys"]})
    assert "new-1" not in recommended(client, deny=["new-1"])
    tell(client, {"item": "1", "features": {"department": "books"}})
    assert 1 not in recommended(client, allow={"department": "toys"})


def test_what_is_left_out_stays_as_it_is(client: TestClient) -> None:
    tell(client, NEW, {"item": "7", "name": "Seven"})
    tell(client, {"item": "new-1", "available": False}, {"item": "7", "available": False})
    assert not {"new-1", 7} & recommended(client).keys()
    told = tell(client, {"item": "new-1", "name": "Another"}, {"item": "7", "features": {"department": "toys"}})
    assert [one["available"] for one in told] == [False, False]
    assert not {"new-1", 7} & recommended(client).keys()
    tell(client, {"item": "new-1", "available": True}, {"item": "7"})  # nothing else said: it may be recommended
    found = recommended(client, allow={"department": "toys"})
    assert (found["new-1"]["name"], found[7]["name"]) == ("Another", "Seven")


def test_an_item_like_none_or_without_features_waits(client: TestClient) -> None:
    told = tell(
        client, {"item": "x", "name": "Xylophone"}, {"item": "y", "features": {"department": "ships", "year": 1}}
    )
    assert [(one["known"], one["recommended"]) for one in told] == [(False, False)] * 2
    assert not {"x", "y"} & recommended(client).keys()
    send(client, ("u", "x"))
    assert client.get("/users/u").json()["history"][0]["name"] == "Xylophone"
    found = client.get("/items", params={"search": "xylo"}).json()
    assert found == [{"item": "x", "name": "Xylophone", "available": True, "known": False, "recommended": False}]
    assert client.get("/similar?item=x").status_code == 422


def test_a_number_that_no_column_holds_is_refused() -> None:
    with pytest.raises(InputError, match="column 'price' of the model's items has numbers, got '1000"):
        _cell("price", pl.Float64(), 10**400)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"item": "n", "features": {"departmnt": "toys"}}, "no column 'departmnt': did you mean 'department'?"),
        ({"item": "n", "features": {"year": "soon"}}, "column 'year' of the model's items has numbers, got 'soon'"),
        ({"item": "n", "features": {"year": True}}, "column 'year' of the model's items has numbers, got 'True'"),
        ({"item": "n", "features": {"used": "yes"}}, "column 'used' of the model's items is true or false, got 'yes'"),
        ({"item": "n", "name": ""}, "name"),
        ({"item": "n", "name": "x" * 501}, "name"),
        ({"item": "n", "name": "a\x00b"}, "name"),
        ({"item": "n", "colour": "red"}, "colour"),
        ({"item": "n", "features": {"department": "x" * 1001}}, "department"),
        ({"item": "n", "features": {"department": {"a": 1}}}, "department"),
        ({"item": "n", "features": {f"c{n}": 1 for n in range(51)}}, "features"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line_and_nothing_of_it_is_kept(
    client: TestClient, told: dict[str, Any], said: str
) -> None:
    answer = client.put("/items", json={"items": [{"item": "7", "name": "Seven"}, told]})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]
    assert client.service.engine.store.items("default") == []


def test_a_tenant_may_tell_of_so_many_items(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogues, "MOST_ITEMS", 2)
    tell(client, {"item": "1"}, {"item": "2"})
    tell(client, {"item": "2", "name": "Two"})
    answer = client.put("/items", json={"items": [{"item": "3"}]})
    assert answer.status_code == 422
    assert answer.json()["detail"] == "a tenant may tell of 2 items, and these would be 3"


def test_changes_that_were_made_ready_before_others_came_lose_none(client: TestClient) -> None:
    engine = client.service.engine
    before = engine.catalogues.of("default", engine.states.shelf)
    ready = engine.catalogues.prepare(before, [Item("1", None, "One")])
    engine.change_items("default", [Item("2", None, "Two")])
    engine.change_items("default", [Item("1", None, "One")], ready)
    shown = {one["item"]: one["name"] for one in client.get("/items", params={"limit": 100}).json()}
    assert (shown["1"], shown["2"]) == ("One", "Two")


def test_a_model_without_a_table_takes_names_and_refuses_features(tmp_path: Path) -> None:
    made = service(models(tmp_path / "models"), tmp_path / "e.db")
    with TestClient(create_app(made)) as test:
        answer = test.put("/items", json={"items": [NEW]})
        assert answer.status_code == 422
        assert "trained without a table of items (--items): it takes names and availability" in answer.json()["detail"]
        tell(test, {"item": "7", "name": "Seven"}, {"item": "new", "name": "New"})
        assert recommended(test)[7]["name"] == "Seven"
        assert recommended(test)[9]["name"] is None
        assert "new" not in recommended(test)
    made.engine.stop()


def test_a_baseline_takes_names_and_filters_and_places_nothing(tmp_path: Path) -> None:
    folder = models(tmp_path / "models", log_with_table())
    config = Recommender.load(folder, device="cpu").config
    run = Recommender._untrained(split(log_with_table(), config.protocol), config)
    export(run.with_baseline("item-knn"), folder.parent / "knn")
    made = service(folder.parent / "knn", tmp_path / "e.db")
    with TestClient(create_app(made)) as test:
        told = tell(test, NEW, {"item": "1", "name": "One", "features": {"department": "toys"}})
        assert [one["recommended"] for one in told] == [False, True]
        assert recommended(test, allow={"department": "toys"})[1]["name"] == "One"
    made.engine.stop()


def test_it_is_there_after_a_restart_and_under_another_model(model: Path, tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        made = service(model, tmp_path / "e.db")
        with TestClient(create_app(made)) as test:
            if not found:
                tell(test, NEW, {"item": "7", "name": "Seven"})
                send(test, *(("u", str(n), f"e{n}", n + 1) for n in range(6)), ("u", "new-1", "e", 9))
                tell(test, {**NEW, "item": "new-2"})
            found.append(recommended(test))
            assert made.engine.states.unknown(User("default", "u")) == {"new-1"}
            test.post("/model", json={"name": "two"}).raise_for_status()
            other = recommended(test)
            assert other["new-2"]["name"] == "Wooden horse"
            assert other[7]["name"] == "Seven"
        made.engine.stop()
    assert found[0] == found[1]
    assert "new-1" not in found[0]


def test_a_store_of_the_version_before_keeps_what_it_has(model: Path, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "e.db") as db:
        db.executescript(
            """CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
            INSERT INTO about VALUES ('version', '1');
            CREATE TABLE items (tenant TEXT NOT NULL, item TEXT NOT NULL, available INTEGER NOT NULL,
            PRIMARY KEY (tenant, item)) WITHOUT ROWID;
            INSERT INTO items VALUES ('default', '7', 0);"""
        )
    db.close()
    for _ in range(2):
        made = service(model, tmp_path / "e.db")
        with TestClient(create_app(made)) as test:
            assert 7 not in recommended(test)
            tell(test, NEW)
            assert recommended(test)["new-1"]["name"] == "Wooden horse"
        made.engine.stop()


def test_two_tenants_items_have_nothing_in_common(model: Path, tmp_path: Path) -> None:
    keys = {name: add_key(tmp_path / "keys", name) for name in ("a", "b")}
    made = service(model, tmp_path / "e.db", keys=read_keys(tmp_path / "keys"))
    with TestClient(create_app(made)) as test:
        head = {name: {"headers": {"X-API-Key": key}} for name, key in keys.items()}
        tell(test, NEW, {"item": "7", "name": "Seven"}, **head["a"])
        tell(test, {**NEW, "name": "Tin horse"}, {"item": "9", "features": {"department": "toys"}}, **head["b"])
        found = {}
        for name, more in head.items():
            body = {"users": ["u"], "k": 100}
            answer = test.post("/recommendations", json=body, **more).json()["recommendations"][0]["items"]
            found[name] = {one["item"]: one["name"] for one in answer}
            allowed = {"users": ["u"], "k": 100, "allow": {"department": "toys"}}
            toys = test.post("/recommendations", json=allowed, **more).json()["recommendations"][0]["items"]
            assert (9 in {one["item"] for one in toys}) == (name == "b")
        assert (found["a"]["new-1"], found["a"][7]) == ("Wooden horse", "Seven")
        assert (found["b"]["new-1"], found["b"][7]) == ("Tin horse", "item 7")
    made.engine.stop()
