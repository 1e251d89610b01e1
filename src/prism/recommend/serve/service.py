"""What the endpoints need: the engine, the keys, the options, and who else shares the users."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prism.recommend.serve.engine import Engine
from prism.recommend.serve.keys import Keys
from prism.recommend.serve.measures import Measures
from prism.recommend.serve.options import Options

if TYPE_CHECKING:
    from prism.recommend.serve.peers import Peers


@dataclass(kw_only=True)
class Service:
    """One process."""

    engine: Engine
    folder: Path
    """Of the model."""
    keys: Keys = field(default_factory=Keys)
    options: Options = field(default_factory=Options)
    shard: int = 0
    shards: int = 1
    peers: "Peers | None" = None
    """The other shards; None: requests about their users are refused."""
    measures: Measures = field(default_factory=Measures)
