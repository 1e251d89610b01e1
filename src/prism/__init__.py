"""PRISM: S_t = S_{t-1} A_t + B_t with Gated DeltaNet's forgetting A_t and a rank-L write B_t."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism.errors import InputError
    from prism.layers import MIXERS, mixer_config
    from prism.ops import delta_rule
    from prism.recommend.config import FitConfig
    from prism.recommend.data.log import Log
    from prism.recommend.data.logs import read_log
    from prism.recommend.recommender import Recommender
    from prism.train.config import TrainConfig

__version__ = "0.1.0"
__all__ = [
    "MIXERS",
    "FitConfig",
    "InputError",
    "Log",
    "Recommender",
    "TrainConfig",
    "__version__",
    "delta_rule",
    "mixer_config",
    "read_log",
]
_MODULES = {
    "FitConfig": "prism.recommend.config",
    "InputError": "prism.errors",
    "Log": "prism.recommend.data.log",
    "MIXERS": "prism.layers",
    "Recommender": "prism.recommend.recommender",
    "TrainConfig": "prism.train.config",
    "delta_rule": "prism.ops",
    "mixer_config": "prism.layers",
    "read_log": "prism.recommend.data.logs",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for: `import prism` itself waits for nothing."""
    if name not in _MODULES:
        raise AttributeError(f"module 'prism' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
