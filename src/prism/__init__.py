"""PRISM: S_t = S_{t-1} A_t + B_t with Gated DeltaNet's forgetting A_t and a rank-L write B_t."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism.recommend.data.logs import read_log
    from prism.recommend.recommender import Recommender

__version__ = "0.1.0"
__all__ = ["Recommender", "__version__", "read_log"]
_PLACES = {"read_log": "prism.recommend.data.logs", "Recommender": "prism.recommend.recommender"}


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for: `import prism` itself waits for nothing."""
    if name not in _PLACES:
        raise AttributeError(f"module 'prism' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)
