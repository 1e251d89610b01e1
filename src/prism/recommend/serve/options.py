"""What `prism serve` was told, once it is checked."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `serve`."""

    model: Path
    store: str
    host: str
    port: int
    keys: Path | None
    shards: int
    shard: int
    peers: tuple[str, ...]
    users_in_memory: int
    snapshot_every: int
    max_body: int
    max_rate: float
    timeout: float
    future: int
    device: str
    threads: int
    cors: tuple[str, ...]
    log_requests: bool
    browse: bool
