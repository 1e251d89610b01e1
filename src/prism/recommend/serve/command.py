"""The commands `prism serve` and `prism serve-key`."""

import logging
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

from tyro.conf import OmitArgPrefixes, Positional

from prism.errors import InputError
from prism.recommend.serve.options import SECRET, Options

OPTIONS = Options()


def serve(model: Positional[Path], service: OmitArgPrefixes[Options] = OPTIONS) -> None:
    """Answers live over HTTP: events in, recommendations out; a page to try it at /.

    Args:
        model: A folder that `prism export` wrote.
        service: Where it listens, what it keeps and what it refuses.
    """
    if service.shards > 1 and service.shard is None:
        _start_all(service.shards)
        return
    try:
        from prism.recommend.serve.process import run
    except ImportError as error:
        raise InputError(f"the service needs {error.name}: pip install 'prism-sequence[serve]'") from None
    logging.basicConfig(level=logging.INFO if service.log_requests else logging.WARNING, format="%(message)s")
    run(model, service)


def _start_all(shards: int) -> None:
    """One process per shard, with the same arguments; when one ends, all do, and its failure is this one's."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the others are ended below
    command = [sys.executable, "-m", "prism.cli", *sys.argv[1:]]
    env = {SECRET: secrets.token_urlsafe(32)} | os.environ
    running = [subprocess.Popen([*command, "--shard", str(n)], env=env) for n in range(shards)]
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


def serve_key(file: Positional[Path], tenant: str = "default", operator: bool = False) -> None:
    """Makes an API key for a tenant and prints it once; the file keeps only its hash.

    Args:
        file: File of keys for `prism serve --keys`; made if there is none.
        tenant: Whose key it is: two tenants never see each other's users.
        operator: The key may change the model, which where a file has several tenants no other may.
    """
    from prism.recommend.serve.keys import add_key

    print(add_key(file, tenant, operator))
