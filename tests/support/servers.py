"""Redis and PostgreSQL for tests: the real servers, on a free port, in a folder of their own."""

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable
from glob import glob
from pathlib import Path

import pytest
from support.service import HOST, free_port


class Redis:
    """A server that can be killed and started again on what it has on the disk."""

    def __init__(self, folder: Path):
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("no redis-server: `make test-services` gets it")
        pytest.importorskip("redis", reason="the store needs redis: pip install 'prism-sequence[redis]'")
        self.port = free_port()
        self.address = f"redis://{HOST}:{self.port}/0"
        self._words = [program, "--port", str(self.port), "--bind", HOST, "--dir", str(folder), "--save", ""]
        self.start()

    def start(self, *options: str) -> None:
        """Waits until it answers."""
        import redis

        durable = ("--appendonly", "yes", "--appendfsync", "always")
        self._process = subprocess.Popen([*self._words, *(options or durable)], stdout=subprocess.DEVNULL)

        def answers() -> bool:
            try:
                return bool(redis.Redis(HOST, self.port).ping())
            except redis.RedisError:
                return False

        wait_for(answers)

    def kill(self) -> None:
        """As a power cut would."""
        self._process.kill()
        self._process.wait()

    stop = kill


class Postgres:
    """The same for PostgreSQL, run by another user where the tests are root's."""

    def __init__(self, folder: Path):
        found = [*glob("/usr/lib/postgresql/*/bin"), *filter(None, [os.path.dirname(shutil.which("initdb") or "")])]
        if not found:
            pytest.skip("no postgresql: `make test-services` gets it")
        psycopg = pytest.importorskip(
            "psycopg", reason="the store needs psycopg: pip install 'prism-sequence[postgresql]'"
        )
        self._bin, self._data, self.port = found[0], folder / "data", free_port()
        self._as: tuple[str, ...] = ()
        if os.getuid() == 0:
            try:
                account = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
            self._as = ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
            os.chown(folder, account.pw_uid, account.pw_gid)
            for above in folder.parents:  # the server must reach its folder
                if above.stat().st_uid == 0 and not above.stat().st_mode & 0o001:
                    above.chmod(above.stat().st_mode | 0o011)
        self.address = f"postgresql://prism@{HOST}:{self.port}/postgres"
        self._run("initdb", "-D", str(self._data), "-U", "prism", "-A", "trust", "--no-sync")
        self._error = psycopg.Error
        self.start()

    def _run(self, program: str, *words: str) -> None:
        subprocess.run([*self._as, f"{self._bin}/{program}", *words], check=True, stdout=subprocess.DEVNULL, cwd="/")

    def start(self) -> None:
        """Waits until it answers."""
        options = f"-p {self.port} -h {HOST} -k ''"
        self._run("pg_ctl", "-D", str(self._data), "-o", options, "-l", str(self._data / "log"), "-t", "600", "start")

    def kill(self) -> None:
        """As a power cut would."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-t", "600", "stop")

    stop = kill


def wait_for(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until something holds; fails if it does not."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"did not come true in {seconds:g} s"
        time.sleep(0.01)
