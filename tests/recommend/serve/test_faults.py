"""When things go wrong below or in front of the service: disks, flushes, files and clients."""

import os
import select
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("uvicorn", reason="the service needs uvicorn: pip install 'prism-sequence[serve]'")
pytest.importorskip("httptools", reason="the service needs httptools: pip install 'prism-sequence[serve]'")
pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")

from support.servers import wait_for
from support.service import HOST, expected, items, models, running, send

from prism.errors import InputError
from prism.recommend.serve.stores.address import open_store
from prism.recommend.serve.stores.base import Event, User


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a tmpfs can only be mounted by root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_told_nothing_acknowledged_is_lost_and_room_makes_it_go_on(
    model: Path, small_disk: Path
) -> None:
    history: list[str] = []
    with running(model, small_disk / "e.db", "--snapshot-every", "50") as client:
        for n in range(2000):
            batch = [(("u"), str((n + i) % 50), f"{n}-{i}", n + 1) for i in range(20)]
            body = {"events": [dict(zip(("user", "item", "id", "time"), one, strict=True)) for one in batch]}
            answer = client.post("/events", json=body)
            if answer.status_code != 200:
                break
            history += [item for _, item, _, _ in batch]
            if n == 20:
                (small_disk / "ballast").write_bytes(bytes(1_000_000))
        assert answer.status_code == 503
        assert "full" in answer.json()["detail"]
        assert client.get("/ready").status_code == 503
        assert items(client.get("/recommendations?user=u").json()) == expected(model, history)
        (small_disk / "ballast").unlink()
        wait_for(lambda: client.get("/ready").status_code == 200)
        assert items(send(client, ("u", "3", "after", 3000), recommend={})) == expected(model, [*history, "3"])
        assert client.get("/users/u").json()["events"] == len(history) + 1


def test_an_event_whose_flush_fails_is_not_acknowledged_and_the_next_is(model: Path, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace: apt-get install strace")
    with running(model, tmp_path / "e.db") as client:
        send(client, ("u", "3", "a", 10))
        words = [
            strace,
            "-f",
            "-p",
            str(client.process.pid),
            "-e",
            "trace=fsync,fdatasync",
            "-o",
            str(tmp_path / "trace"),
        ]
        tracer = subprocess.Popen(
            [*words, "-e", "inject=fsync,fdatasync:error=EIO"], stderr=subprocess.PIPE, text=True
        )  # fmt: skip
        assert tracer.stderr is not None
        if "attached" not in (said := tracer.stderr.readline()):
            pytest.skip(f"strace cannot attach here: {said.strip()}")
        answer = client.post("/events", json={"events": [{"user": "u", "item": "9", "id": "b", "time": 20}]})
        assert answer.status_code == 503
        assert client.get("/ready").status_code == 503
        tracer.terminate()
        tracer.communicate()
        assert "EIO (Input/output error) (INJECTED)" in (tmp_path / "trace").read_text()
        wait_for(lambda: client.get("/ready").status_code == 200)
        answer = send(client, ("u", "9", "b", 20), ("u", "7", "c", 30), recommend={})  # the client is not sure: again
        assert [one["seq"] for one in answer["events"]] == [2, 3]
        assert items(answer) == expected(model, ["3", "9", "7"])


def test_a_database_with_a_damaged_page_is_refused_and_told(tmp_path: Path) -> None:
    path = tmp_path / "e.db"
    store = open_store(str(path))
    store.append([Event(User("t", f"u{n % 7}"), f"{n:08}", "some item", n) for n in range(3000)])
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    whole = bytearray(path.read_bytes())
    for at in range(4096 * 5, len(whole) - 4096, 4096 * 3):
        whole[at : at + 64] = bytes(64)
    path.write_bytes(whole)
    with pytest.raises(InputError, match=r"cannot be used .*: restore it from a copy"):
        open_store(str(path))


def say(port: int, text: bytes) -> socket.socket:
    one = socket.create_connection((HOST, port), timeout=20)
    one.sendall(text)
    return one


def test_slow_and_vanishing_clients_are_cut_and_nobody_else_waits_for_them(model: Path, tmp_path: Path) -> None:
    head = b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
    with running(model, tmp_path / "e.db", "--timeout", "8") as client:
        port = client.base_url.port
        slow = [say(port, head + b'{"events": [') for _ in range(20)]
        silent = say(port, b"POST /events HTTP/1.1\r\nX-Slow: ")
        gone = [say(port, head + b"{") for _ in range(20)]
        body = b'{"events": [{"user": "left", "item": "3", "id": "left"}], "recommend": {}}'
        whole = head.replace(b"500", str(len(body)).encode()) + body
        gone += [say(port, whole) for _ in range(20)]  # asks, and does not wait for the answer
        for one in gone:
            one.close()
        for n in range(20):
            send(client, ("u", str(n), f"e{n}", n + 1), recommend={})
        assert not select.select(slow, [], [], 0)[0]  # all answered while twenty bodies are waited for
        for one in slow:
            assert one.recv(100).startswith(b"HTTP/1.1 408")
            one.close()
        silent.settimeout(30)
        assert silent.recv(100) == b""  # headers must come in ten seconds
        silent.close()
        assert client.get("/users/left").json()["events"] == 1
        assert "prism_waiting_requests 0.0" in client.get("/metrics").text


def test_headers_without_end_are_cut(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path / "e.db") as client:
        endless = say(client.base_url.port, b"GET /health HTTP/1.1\r\nX: ")
        with pytest.raises(OSError, match=r"reset|pipe"):
            endless.sendall(b"x" * 50_000_000)
        endless.close()
        assert client.get("/health").status_code == 200


def test_told_to_stop_the_service_closes_its_store_and_ends_well(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path / "e.db") as client:
        send(client, ("u", "3", "e", 10))
        client.process.terminate()  # type: ignore[attr-defined]
        assert client.process.wait(timeout=60) == 0  # type: ignore[attr-defined]
    assert not (tmp_path / "e.db-wal").exists()
