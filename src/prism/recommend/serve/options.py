"""The options of `prism serve`, checked before anything is opened."""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from prism.config import Checked, Count, Natural, NotNegative, Positive
from prism.errors import InputError

# The environment variable by which shards know each other.
SECRET = "PRISM_SHARD_SECRET"
# What a browser says of where a page comes from.
ORIGIN = re.compile(r"https?://[^/?#@\s]+")


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """How one process serves, or several."""

    store: str = "prism-events.db"
    """Where events are kept: a SQLite file, made if there is none; or redis://…, postgresql://…"""
    host: str = "127.0.0.1"
    """Address to listen on; any but this machine's own needs keys."""
    port: int = 8080
    """Port to listen on."""
    keys: Path | None = None
    """File of API keys, made by `prism serve-key`; without it everyone may ask."""
    shards: Count = 1
    """Processes, each with its part of the users (by hash); any of them takes any request."""
    shard: Natural | None = None
    """Start only this one of the shards (0, 1, …): for shards on several machines."""
    peers: tuple[str, ...] = ()
    """Where all shards listen, in order, as host:port; default: all on this machine."""
    device: str = "cpu"
    """Where the model runs and states are, e.g. cpu or cuda. On a CPU one event takes a compiled step."""
    threads: Count = 1
    """Threads of each process on a CPU; shards use several cores better."""
    users_in_memory: int = 20_000
    """States that are kept in memory at most, at least 2,000."""
    snapshot_every: Count = 64
    """Events of a user between two snapshots of the state."""
    max_body: Count = 1_000_000
    """Largest request, in bytes."""
    max_rate: NotNegative = 0.0
    """Requests per second of one key to each shard, at most; 0: no limit."""
    timeout: Positive = 5.0
    """Seconds until a request is given up."""
    future: Natural = 600
    """Seconds by which an event may be ahead of this machine's clock; one further ahead is refused."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may use the service from a browser, e.g. https://shop.example; default: none."""
    log_requests: bool = False
    """One line of JSON per request on the standard error, without ids or keys."""
    browse: bool = False
    """Open the page in a browser as soon as the service answers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        last = self.port if self.shards == 1 else self.port + self.shards  # each shard has one of its own
        if not (0 < self.port and last < 65536):
            raise InputError(f"port must be from 1 to 65535, each shard's own included, got {self.port}")
        if self.own >= self.shards:
            raise InputError(f"shard must be from 0 to {self.shards - 1}, got {self.shard}")
        if self.peers and len(self.peers) != self.shards:
            count = f"{len(self.peers)} addresses for {self.shards} shards"
            raise InputError(f"peers lists {count}: give one each, in order")
        for origin in self.cors:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise InputError(f"cors={origin!r} is no origin: give scheme and host, e.g. https://shop.example, or *")
        if self.keys is None and not _is_own(self.host):
            raise InputError(
                f"host {self.host} can be reached from outside: give --keys, made by `prism serve-key FILE`"
            )

    @property
    def own(self) -> int:
        """The shard that this process is."""
        return self.shard or 0


def _is_own(host: str) -> bool:
    """Whether an address is this machine's alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
