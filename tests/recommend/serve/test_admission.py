"""Who may ask for what: keys and tenants, ids of every form, and requests that are refused."""
# ruff: noqa: E402  (what may be absent is asked for first)

import asyncio
import logging
import os
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("prometheus_client", reason="the service needs it: pip install 'prism-sequence[serve]'")
httpx = pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")

from fastapi.testclient import TestClient
from support.service import items, log_with_table, models, send, service

from prism.errors import InputError
from prism.recommend.serve.app import create_app
from prism.recommend.serve.keys import add_key, read_keys
from prism.recommend.serve.options import Options
from prism.recommend.serve.schema import RecommendationIn


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("models"))


def test_two_tenants_never_see_each_others_users(model: Path, tmp_path: Path) -> None:
    keys = {name: add_key(tmp_path / "keys", name) for name in ("a", "b")}
    assert keys["a"] not in (tmp_path / "keys").read_text()
    made = service(model, tmp_path / "e.db", keys=read_keys(tmp_path / "keys"))
    with TestClient(create_app(made)) as test:
        assert test.get("/model").status_code == test.get("/model", headers={"X-API-Key": "guess"}).status_code == 401
        head = {name: {"X-API-Key": key} for name, key in keys.items()}
        body = {"events": [{"user": "u", "item": "3", "id": "e"}]}
        assert test.post("/events", json=body, headers=head["a"]).json()["events"][0]["new"]
        assert test.get("/users/u", headers=head["b"]).status_code == 404
        test.put("/items", json={"items": [{"item": "7", "available": False}]}, headers=head["a"])
        assert test.post("/events", json=body, headers=head["b"]).json()["events"][0]["new"]
        assert test.delete("/users/u", headers=head["b"]).json()["removed_events"] == 1
        assert test.get("/users/u", headers=head["a"]).json()["events"] == 1
        gone = {
            name: [i["item"] for i in test.get("/items?limit=50", headers=head[name]).json() if not i["available"]]
            for name in keys
        }
        assert gone == {"a": ["7"], "b": []}
    made.engine.stop()


@pytest.mark.parametrize("text", ["[]", "{}", '"key"'])
def test_a_file_without_keys_is_refused_for_it_would_let_everyone_in(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(InputError, match="holds no keys"):
        read_keys(tmp_path / "keys")


def test_where_there_are_several_tenants_only_an_operators_key_changes_the_model(model: Path, tmp_path: Path) -> None:
    one = add_key(tmp_path / "one", "a")
    assert read_keys(tmp_path / "one").operates(one)  # whose service it is
    keys = {name: add_key(tmp_path / "keys", name, operator=name == "ops") for name in ("a", "b", "ops")}
    made = service(model, tmp_path / "e.db", keys=read_keys(tmp_path / "keys"))
    with TestClient(create_app(made)) as test:

        def swap(key: str) -> Any:
            return test.post("/model", json={"name": "two"}, headers={"X-API-Key": key})

        assert swap("guess").status_code == 401
        assert swap(keys["a"]).status_code == 403
        assert "serve-key" in swap(keys["a"]).json()["detail"]
        assert test.get("/model", headers={"X-API-Key": keys["b"]}).json()["name"] == "one"
        assert swap(keys["ops"]).json()["name"] == "two"
    made.engine.stop()


@pytest.mark.parametrize("user", ["a/b", "/", "ü ?#+&", "a//b/"])
def test_whatever_a_user_is_called_it_can_be_read_and_deleted(client: TestClient, user: str) -> None:
    send(client, (user, "3", "e", 5))
    path = f"/users/{quote(user, safe='')}"
    assert client.get(path).json()["user"] == user
    assert client.get("/because", params={"user": user, "item": "7"}).json()
    assert client.delete(path).json() == {"user": user, "removed_events": 1}
    assert client.get(path).status_code == 404
    assert 'path="/users/{user}",status="404"' in client.get("/metrics").text  # never the id


def test_a_refused_request_leaves_no_id_in_the_measures_and_none_in_the_log(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = service(model, tmp_path / "e.db", options=Options(max_body=2000, max_rate=3, timeout=60))
    caplog.set_level(logging.INFO, logger="prism.serve.requests")
    with TestClient(create_app(made)) as test:
        long = {"X-API-Key": "another", "Content-Length": "5000"}
        assert test.delete("/users/somebody", headers=long).status_code == 413
        assert test.delete("/of/somebody", headers=long).status_code == 413
        assert 429 in [test.get("/users/somebody").status_code for _ in range(9)]
    text = made.measures.text(made.engine).decode()
    assert {'path="/users/{user}",status="413"', 'path="/users/{user}",status="429"'} <= set(
        re.findall(r'path="[^"]*",status="4[0-9]*"', text)
    )
    assert 'path="other",status="413"' in text
    assert "somebody" not in text
    assert "/users/{user}" in caplog.text
    assert "somebody" not in caplog.text
    made.engine.stop()


@pytest.mark.parametrize("name", ["deny", "allow", "limt", "K"])
def test_what_a_question_in_the_address_cannot_say_is_refused_and_not_passed_over(
    client: TestClient, name: str
) -> None:
    answer = client.get("/recommendations", params={"user": "u", name: "7"})
    assert answer.status_code == 422
    takes = "GET /recommendations takes user, k, exclude_seen, at; allow and deny go into the body of POST"
    assert answer.json()["detail"] == f"query.{name}: {takes}"


def test_a_question_in_the_address_may_be_of_a_time(client: TestClient) -> None:
    found = client.get("/recommendations", params={"user": "u", "at": 1323436800}).json()
    assert found == client.post("/recommendations", json={"users": ["u"], "at": 1323436800}).json()
    assert client.get("/recommendations", params={"user": "u", "at": "soon"}).status_code == 422
    named = {
        one["name"] for one in client.get("/openapi.json").json()["paths"]["/recommendations"]["get"]["parameters"]
    }
    assert named == {*RecommendationIn.model_fields, "x-api-key"}


def test_ids_that_are_numbers_can_be_sent_back_as_they_came(client: TestClient) -> None:
    found = items(client.post("/recommendations", json={"users": [7]}).json())
    assert isinstance(found[0], int)
    send(client, (7, found[0], 12))
    assert client.get("/users/7").json()["history"][0]["item"] == str(found[0])
    assert client.post("/events", json={"events": [{"user": True, "item": 3}]}).status_code == 422


def test_a_load_balancer_may_ask_for_the_head_alone(client: TestClient) -> None:
    for path in ("/health", "/ready"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_the_store_is_its_owners_alone(client: TestClient, tmp_path: Path) -> None:
    send(client, ("u", "3"))
    kept = list(tmp_path.glob("events.db*"))
    assert kept
    assert {one.stat().st_mode & 0o77 for one in kept} == {0}


def test_a_file_of_keys_stays_readable_by_whom_it_was(tmp_path: Path) -> None:
    add_key(tmp_path / "keys", "a")
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
    (tmp_path / "keys").chmod(0o640)
    if os.geteuid() == 0:
        os.chown(tmp_path / "keys", 12345, 54321)
    before = (tmp_path / "keys").stat()
    add_key(tmp_path / "keys", "b")
    after = (tmp_path / "keys").stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert read_keys(tmp_path / "keys").tenants == {"a", "b"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/events", {"events": []}, 422),
        ("POST", "/events", {"events": [{"user": "u"}]}, 422),
        ("POST", "/events", {"events": [{"user": "u", "item": "3", "tme": 4}]}, 422),
        ("POST", "/events", {"events": [{"user": "u", "item": "3", "time": -4}]}, 422),
        ("POST", "/events", {"events": [{"user": "a\x00b", "item": "3"}]}, 422),
        ("POST", "/events", {"events": [{"user": "u", "item": ["3"]}]}, 422),
        ("POST", "/events", {"events": [{"user": "u", "item": "3", "time": 1724000000000}]}, 422),
        ("GET", "/users/", None, 422),
        ("POST", "/recommendations", {"users": ["u"], "k": 0}, 422),
        ("POST", "/recommendations", {"users": ["u"], "allow": ["nothing known"]}, 422),
        ("POST", "/recommendations", {"users": ["u"], "allow": {"shelf": "s"}}, 422),
        ("GET", "/similar?item=nothing", None, 422),
        ("GET", "/users/nobody", None, 404),
        ("GET", "/nothing", None, 404),
        ("POST", "/health", None, 405),
    ],
)
def test_what_is_wrong_is_told_as_problem_json(
    client: TestClient, method: str, path: str, body: Any, status: int
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert answer.json()["detail"]


def test_a_time_in_milliseconds_is_told_so(client: TestClient) -> None:
    body = {"events": [{"user": "u", "item": "3", "time": 1724000000000}]}
    assert client.post("/events", json=body).json()["detail"].endswith("; a time is in whole seconds since 1970")


def test_an_event_far_ahead_of_the_clock_is_refused_with_all_of_its_request(client: TestClient) -> None:
    now, most = int(time.time()), Options().future
    near, far = ({"user": "u", "item": "3", "time": now + ahead} for ahead in (most // 2, most + 500))
    answer = client.post("/events", json={"events": [near, far]})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(f"body.events.1: time {far['time']} is ")
    assert answer.json()["detail"].endswith("s ahead of the service's clock, 600 are allowed (--future); "
                                            "nothing of the request was taken")  # fmt: skip
    assert client.get("/users/u").status_code == 404
    assert send(client, ("u", "3", "near", near["time"]), ("u", "9", "now", now))["events"][1]["seq"] == 2
    told = client.get("/users/u").json()["history"]
    assert [one["item"] for one in told] == ["9", "3"]  # within what is allowed it is late, and put in its place


def test_a_body_that_is_too_large_or_no_json_is_refused(model: Path, tmp_path: Path) -> None:
    made = service(model, tmp_path / "e.db", options=Options(max_body=2000, max_rate=5, timeout=60))
    with TestClient(create_app(made)) as test:
        assert test.post("/events", content=b"x" * 3000).status_code == 413
        chunks, kind = iter([b'{"events": [' + b" " * 1900, b" " * 1900]), {"content-type": "application/json"}
        assert test.post("/events", content=chunks, headers=kind).status_code == 413
        assert test.post("/events", content=b'{"events": [{"user": "u", "item": "3"}]}').status_code == 422
        assert test.post("/events", content=b"{", headers={"content-type": "application/json"}).status_code == 422
        assert 429 in [test.get("/health").status_code for _ in range(12)]
    made.engine.stop()


@pytest.mark.parametrize(("method", "path"), [("POST", "/events"), ("PUT", "/items"), ("POST", "/model")])
def test_a_body_that_has_no_end_is_refused_while_it_comes_wherever_it_is_sent(
    model: Path, tmp_path: Path, method: str, path: str
) -> None:
    made = service(model, tmp_path / "e.db", options=Options(max_body=2000, timeout=1))
    kind = {"content-type": "application/json"}
    with TestClient(create_app(made)) as test:
        long = test.request(method, path, content=iter([b'{"name": ', b" " * 1900, b" " * 1900]), headers=kind)
        assert (long.status_code, long.json()["detail"]) == (413, "a request may have 2,000 bytes")
        assert asyncio.run(status_of_a_slow_one(create_app(made), method, path)) == 408
    made.engine.stop()


async def status_of_a_slow_one(app: Any, method: str, path: str) -> int:
    """What is answered to a request whose body does not go on."""
    sent, begun = [], iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> Any:
        return next(begun, None) or await asyncio.Future()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/events", "POST"),
        ("PUT", "/recommendations", "GET, POST"),
        ("POST", "/users/a%2Fb", "DELETE, GET"),
        ("DELETE", "/items", "GET, PUT"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
def test_a_path_that_is_known_says_which_methods_it_takes(
    client: TestClient, method: str, path: str, allow: str
) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"].endswith(f"takes {allow}")


def test_the_document_names_every_field_of_every_answer_and_its_examples_work(tmp_path: Path) -> None:
    made = service(models(tmp_path / "models", log_with_table()), tmp_path / "events.db")
    with TestClient(create_app(made)) as client:
        check_document(client)
    made.engine.stop()


def check_document(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    kinds = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            assert about["description"], (method, path)
            if path == "/metrics":
                continue
            answer = about["responses"]["200"]["content"]["application/json"]["schema"]
            answer = answer.get("items", answer)
            assert kinds[answer["$ref"].rpartition("/")[2]]["properties"], (method, path)
            if "requestBody" not in about or path == "/model":
                continue
            body = about["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            for example in kinds[body]["examples"]:
                given = client.request(method, path, json=example)
                assert given.status_code == 200, (path, given.text)


def test_answers_are_as_the_document_says(client: TestClient) -> None:
    send(client, ("u", "3", "e", 5))
    kinds = client.get("/openapi.json").json()["components"]["schemas"]
    answers = {"UserFacts": "/users/u", "ModelFacts": "/model", "Health": "/health", "ItemFacts": "/items?limit=1"}
    for kind, path in answers.items():
        found = client.get(path).json()
        assert (found[0] if isinstance(found, list) else found).keys() == kinds[kind]["properties"].keys()
