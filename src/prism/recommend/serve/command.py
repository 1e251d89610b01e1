"""The commands `prism serve` and `prism serve-key`."""

import ipaddress
import logging
import subprocess
import sys
import threading
import webbrowser
from pathlib import Path

from tyro.conf import Positional

from prism.config import at_least
from prism.errors import InputError


def serve(
    model: Positional[Path],
    store: Path = Path("prism-events.db"),
    host: str = "127.0.0.1",
    port: int = 8080,
    keys: Path | None = None,
    shards: int = 1,
    shard: int | None = None,
    users_in_memory: int = 20_000,
    snapshot_every: int = 64,
    max_body: int = 1_000_000,
    max_rate: float = 0.0,
    timeout: float = 5.0,
    log_requests: bool = False,
    browse: bool = False,
) -> None:
    """Answers live over HTTP: events in, recommendations out; a page to try it at /.

    Args:
        model: A folder that `prism export` wrote.
        store: SQLite file of the events; made if there is none.
        host: Address to listen on; any but this machine's own needs keys.
        port: Port to listen on; shard n listens on port + n.
        keys: File of API keys, made by `prism serve-key`; without it everyone may ask.
        shards: Processes, each with its part of the users (by hash) and a store of its own.
        shard: Only this one of them, for one machine each.
        users_in_memory: States that are kept in memory at most, at least 2,000.
        snapshot_every: Events of a user between two snapshots of the state.
        max_body: Bytes of a request at most.
        max_rate: Requests a second of one key at most; 0: no limit.
        timeout: Seconds until a request is given up.
        log_requests: One line of JSON per request on the standard error, without ids or keys.
        browse: Open the page in a browser.
    """
    at_least("shards", shards, 1)
    if shard is not None and not 0 <= shard < shards:
        raise InputError(f"shard must be from 0 to {shards - 1}, got {shard}")
    if keys is None and not _own(host):
        raise InputError(f"host {host} can be reached from outside: give --keys, made by `prism serve-key FILE`")
    if browse:
        threading.Timer(2.0, webbrowser.open, (f"http://{host}:{port}/",)).start()
    if shards > 1 and shard is None:
        _start_all(shards)
        return
    _serve_one(
        model, store if shards == 1 else store.with_name(f"{store.stem}-{shard}of{shards}{store.suffix}"), host,
        port + (shard or 0), keys, (shard or 0, shards), (users_in_memory, snapshot_every),
        (max_body, max_rate, timeout), log_requests,
    )  # fmt: skip


def _serve_one(
    model: Path,
    store: Path,
    host: str,
    port: int,
    keys: Path | None,
    share: tuple[int, int],
    sizes: tuple[int, int],
    limits: tuple[int, float, float],
    log_requests: bool,
) -> None:
    try:
        import uvicorn

        from prism.recommend.serve.app import Limits, Service, create_app
        from prism.recommend.serve.engine import Engine
        from prism.recommend.serve.keys import Keys, read_keys
    except ImportError as error:
        raise InputError(f"the service needs {error.name}: pip install 'prism-sequence[serve]'") from None
    from prism.recommend.export import is_model
    from prism.recommend.recommender import Recommender
    from prism.recommend.serve.store import SqliteStore

    if not is_model(model):
        raise InputError(f"{model} is not an exported model: `prism export RUN {model}` makes one of a run")
    logging.basicConfig(level=logging.INFO if log_requests else logging.WARNING, format="%(message)s")
    known = Keys() if keys is None else read_keys(keys)
    engine = Engine(
        Recommender.load(model, device="cpu"), SqliteStore(store), capacity=sizes[0], snapshot_every=sizes[1]
    )  # fmt: skip
    body, rate, seconds = limits
    service = Service(
        engine=engine, folder=model.resolve(), keys=known, limits=Limits(body=body, rate=rate, seconds=seconds),
        shard=share[0], shards=share[1],
    )  # fmt: skip
    print(f"prism: http://{host}:{port}  model {engine.recommender.key}, events in {store}", flush=True)
    try:
        uvicorn.run(
            create_app(service), host=host, port=port, log_level="warning", access_log=False,
            timeout_keep_alive=30, limit_concurrency=2000, server_header=False,
        )  # fmt: skip
    finally:
        engine.stop()


def _start_all(shards: int) -> None:
    """One process per shard, with the same arguments; when one ends, all do."""
    words = [sys.executable, "-m", "prism.cli", *sys.argv[1:]]
    running = [subprocess.Popen([*words, "--shard", str(n)]) for n in range(shards)]
    try:
        while all(one.poll() is None for one in running):
            try:
                running[0].wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue
    finally:
        for one in running:
            one.terminate()
        for one in running:
            one.wait()


def _own(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve_key(file: Positional[Path], tenant: str = "default") -> None:
    """Makes an API key for a tenant and prints it once; the file keeps its hash alone.

    Args:
        file: File of keys for `prism serve --keys`; made if there is none.
        tenant: Whose key it is: two tenants never see each other's users.
    """
    from prism.recommend.serve.keys import add_key

    print(add_key(file, tenant))
