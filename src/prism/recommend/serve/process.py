"""One process of the service: the model is loaded and warm before the first request is let in."""

import math
import os
import signal
import socket
import sys
import webbrowser
from hashlib import sha256
from pathlib import Path

import uvicorn

from prism.config import at_least
from prism.errors import InputError
from prism.machine import pick_device, use_threads
from prism.recommend.recommender import Recommender
from prism.recommend.runs.export import is_model
from prism.recommend.runs.storage import CONFIG
from prism.recommend.serve.app import create_app
from prism.recommend.serve.engine import Engine
from prism.recommend.serve.keys import Keys, read_keys
from prism.recommend.serve.options import SECRET, Options
from prism.recommend.serve.peers import Peers
from prism.recommend.serve.protocol import Protocol
from prism.recommend.serve.requests import MOST_EVENTS
from prism.recommend.serve.service import Service
from prism.recommend.serve.stores.address import open_store
from prism.recommend.serve.stores.base import hidden

# Seconds after which a thread must let another have the interpreter: the default, 5 ms, is longer than a request.
SWITCH_SECONDS = 0.0005


def run(model: Path, options: Options) -> None:
    """Serves until it is stopped; then finishes the requests that wait."""
    if not is_model(model):
        run = (model / CONFIG).is_file()
        how = f"`prism export {model} MODEL` makes one" if run else f"`prism export RUN {model}` makes one of a run"
        raise InputError(f"{model} is not an exported model: {how}")
    at_least("users_in_memory", options.users_in_memory, 2 * MOST_EVENTS)
    if pick_device(options.device).type == "meta":
        raise InputError("device 'meta' cannot be used (its tensors have sizes and no numbers): try cpu")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn, when it is done, lets it go on to whom it found
    keys = Keys() if options.keys is None else read_keys(options.keys)
    secret = shard_secret(options)
    sockets = bound(options)
    sys.setswitchinterval(SWITCH_SECONDS)
    use_threads(options.threads)  # a process per core (--shards): one user's step is too small to divide
    recommender = Recommender.load(model, device=options.device)
    address = shard_store(options.store, options.own, options.shards)
    engine = Engine(
        recommender, open_store(address), capacity=options.users_in_memory, snapshot_every=options.snapshot_every
    )  # fmt: skip
    try:
        engine.warm(keys.tenants)
        service = Service(
            engine=engine,
            folder=model.resolve(),
            keys=keys,
            options=options,
            shard=options.own,
            shards=options.shards,
            peers=None if options.shards == 1 else Peers(shard_addresses(options), options.own, secret),
        )
        for one in sockets:
            one.listen(1024)
        print(
            f"prism: http://{options.host}:{options.port}  model {recommender.key}, events in {hidden(address)}",
            flush=True,
        )
        if options.browse and options.own == 0:
            open_page(options.host, options.port)
        config = uvicorn.Config(
            create_app(service, options.cors), http=Protocol, loop="uvloop", ws="none", log_level="warning",
            access_log=False, timeout_keep_alive=30, limit_concurrency=2000, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=math.ceil(2 * options.timeout),  # a request's body, then its answer
        )  # fmt: skip
        uvicorn.Server(config).run(sockets)
    finally:
        engine.stop()


def open_page(host: str, port: int) -> None:
    """In a browser, if there is a screen to show one on; what is asked now waits until the service answers."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    screen = sys.platform != "linux" or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    try:
        opened = screen and webbrowser.open(f"http://{name}:{port}/")
    except webbrowser.Error:
        opened = False
    if not opened:
        print(f"prism: there is no browser to open here: go to http://{name}:{port}/", flush=True)


def shard_addresses(options: Options) -> list[tuple[str, int]]:
    """Where each shard is reached by the others: on ports after the common one, unless the command says where."""
    if not options.peers:
        return [("127.0.0.1", options.port + 1 + n) for n in range(options.shards)]
    found = []
    for address in options.peers:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise InputError(f"peers: {address!r} is no host:port")
        found.append((host.strip("[]"), int(port)))
    return found


def shard_secret(options: Options) -> str:
    """What a shard says to be known as one; its hash, which can stand in a header whatever it is."""
    secret = os.environ.get(SECRET, "").strip()
    if options.shards > 1 and options.max_rate and not secret:
        raise InputError(
            "max_rate of shards that are started one by one: "
            f"set {SECRET} to the same long random text on every machine, so that each request is counted once"
        )
    return sha256(os.fsencode(secret)).hexdigest() if secret else ""


def bound(options: Options) -> list[socket.socket]:
    """The common port, which all shards of a machine share, and one of this shard's own.

    Before anything else is opened or made: a start that cannot be leaves nothing behind.
    """
    wanted = [(options.host, options.port)]
    if options.shards > 1 and not options.peers:
        wanted.append(shard_addresses(options)[options.own])
    made = []
    for host, port in wanted:
        one = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if options.shards > 1 and (host, port) == wanted[0]:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            one.close()
            raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        one.set_inheritable(True)
        made.append(one)
    return made


def shard_store(address: str, shard: int, shards: int) -> str:
    """A file of its own for each shard; a server is shared."""
    if shards == 1 or "://" in address:
        return address
    path = Path(address)
    return str(path.with_name(f"{path.stem}-{shard}of{shards}{path.suffix}"))
