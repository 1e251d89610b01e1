"""The commands `prism serve` and `prism serve-key`."""

import ipaddress
import logging
import re
import signal
import subprocess
import sys
from pathlib import Path

from tyro.conf import Positional

from prism.config import at_least
from prism.errors import InputError
from prism.recommend.serve.options import Options

# What a browser says of where a page comes from.
ORIGIN = re.compile(r"https?://[^/?#@\s]+")


def serve(
    model: Positional[Path],
    store: str = "prism-events.db",
    host: str = "127.0.0.1",
    port: int = 8080,
    keys: Path | None = None,
    shards: int = 1,
    shard: int | None = None,
    peers: tuple[str, ...] = (),
    users_in_memory: int = 20_000,
    snapshot_every: int = 64,
    max_body: int = 1_000_000,
    max_rate: float = 0.0,
    timeout: float = 5.0,
    future: int = 600,
    device: str = "cpu",
    threads: int = 1,
    cors: tuple[str, ...] = (),
    log_requests: bool = False,
    browse: bool = False,
) -> None:
    """Answers live over HTTP: events in, recommendations out; a page to try it at /.

    Args:
        model: A folder that `prism export` wrote.
        store: Where events are kept: a SQLite file, made if there is none; or redis://…, postgresql://…
        host: Address to listen on; any but this machine's own needs keys.
        port: Port to listen on.
        keys: File of API keys, made by `prism serve-key`; without it everyone may ask.
        shards: Processes, each with its part of the users (by hash); any of them takes any request.
        shard: Start only this one of the shards (0, 1, …): for shards on several machines.
        peers: Where all shards listen, in order, as host:port; default: all on this machine.
        users_in_memory: States that are kept in memory at most, at least 2,000.
        snapshot_every: Events of a user between two snapshots of the state.
        max_body: Largest request, in bytes.
        max_rate: Requests per second of one key, at most; 0: no limit.
        timeout: Seconds until a request is given up.
        future: Seconds by which an event may be ahead of this machine's clock; one further ahead is refused.
        device: Where the model runs and states are, e.g. cpu or cuda. On a CPU one event takes a compiled step.
        threads: Threads of each process on a CPU; shards use several cores better.
        cors: Origins whose pages may use the service from a browser, e.g. https://shop.example; default: none.
        log_requests: One line of JSON per request on the standard error, without ids or keys.
        browse: Open the page in a browser as soon as the service answers.
    """
    at_least("shards", shards, 1)
    at_least("snapshot_every", snapshot_every, 1)
    at_least("max_body", max_body, 1)
    at_least("max_rate", max_rate, 0)
    at_least("future", future, 0)
    at_least("threads", threads, 1)
    if not timeout > 0:
        raise InputError(f"timeout must be above 0, got {timeout}")
    last = port if shards == 1 else port + shards  # each shard has one of its own
    if not (0 < port and last < 65536):
        raise InputError(f"port must be from 1 to 65535, each shard's own included, got {port}")
    if shard is not None and not 0 <= shard < shards:
        raise InputError(f"shard must be from 0 to {shards - 1}, got {shard}")
    if peers and len(peers) != shards:
        raise InputError(f"peers lists {len(peers)} addresses for {shards} shards: give one each, in order")
    for origin in cors:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise InputError(f"cors={origin!r} is no origin: give scheme and host, e.g. https://shop.example, or *")
    if keys is None and not _own(host):
        raise InputError(f"host {host} can be reached from outside: give --keys, made by `prism serve-key FILE`")
    if shards > 1 and shard is None:
        _start_all(shards)
        return
    options = Options(
        model=model, store=store, host=host, port=port, keys=keys, shards=shards, shard=shard or 0, peers=peers,
        users_in_memory=users_in_memory, snapshot_every=snapshot_every, max_body=max_body, max_rate=max_rate,
        timeout=timeout, future=future, device=device, threads=threads, cors=cors,
        log_requests=log_requests, browse=browse,
    )  # fmt: skip
    try:
        from prism.recommend.serve.process import run
    except ImportError as error:
        raise InputError(f"the service needs {error.name}: pip install 'prism-sequence[serve]'") from None
    logging.basicConfig(level=logging.INFO if log_requests else logging.WARNING, format="%(message)s")
    run(options)


def _start_all(shards: int) -> None:
    """One process per shard, with the same arguments; when one ends, all do, and its failure is this one's."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the others are ended below
    command = [sys.executable, "-m", "prism.cli", *sys.argv[1:]]
    running = [subprocess.Popen([*command, "--shard", str(n)]) for n in range(shards)]
    try:
        while all(one.poll() is None for one in running):
            try:
                running[0].wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue
        ended = next(one.returncode for one in running if one.returncode is not None)
        if ended:
            sys.exit(max(ended, 1))  # below 0: a signal ended it
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


def serve_key(file: Positional[Path], tenant: str = "default", operator: bool = False) -> None:
    """Makes an API key for a tenant and prints it once; the file keeps only its hash.

    Args:
        file: File of keys for `prism serve --keys`; made if there is none.
        tenant: Whose key it is: two tenants never see each other's users.
        operator: The key may change the model, which where a file has several tenants no other may.
    """
    from prism.recommend.serve.keys import add_key

    print(add_key(file, tenant, operator))
