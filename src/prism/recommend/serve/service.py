"""What the endpoints need: the engine, the keys, the limits, and who else shares the users."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prism.recommend.serve.engine import Engine
from prism.recommend.serve.keys import Keys
from prism.recommend.serve.measures import Measures

if TYPE_CHECKING:
    from prism.recommend.serve.peers import Peers


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may ask for."""

    body: int = 1_000_000
    """Bytes of a request."""
    rate: float = 0.0
    """Requests a second of one key; 0: as many as come."""
    seconds: float = 5.0
    """Until a request is given up, and until its body must be there."""
    future: int = 600
    """Seconds by which an event's time may be ahead of this machine's clock."""


@dataclass(kw_only=True)
class Service:
    """One process."""

    engine: Engine
    folder: Path
    """Of the model."""
    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    shard: int = 0
    shards: int = 1
    peers: "Peers | None" = None
    """The other shards; None: requests about their users are refused."""
    measures: Measures = field(default_factory=Measures)
