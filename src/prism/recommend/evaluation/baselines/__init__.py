"""Scorers that learn nothing by gradient, printed beside every model: the registry of all."""

from typing import Any

from prism.recommend.data.log import Log
from prism.registry import Registry

BASELINES: Registry[Any] = Registry(
    "baseline",
    {
        "popularity": "prism.recommend.evaluation.baselines.simple:Popularity",
        "repeat-last": "prism.recommend.evaluation.baselines.simple:RepeatLast",
        "item-knn": "prism.recommend.evaluation.baselines.item_knn:ItemKNN",
        "markov": "prism.recommend.evaluation.baselines.markov:Markov",
        "session-knn": "prism.recommend.evaluation.baselines.session_knn:SessionKNN",
        "ease": "prism.recommend.evaluation.baselines.ease:Ease",
    },
)


def usable(train: Log) -> tuple[list[str], list[str]]:
    """(names, notes): the baselines that can be fitted to a log, and one line for each that is left out."""
    names, notes = [], []
    for name in BASELINES:
        config = BASELINES[name]()
        refused = config.refusal(train) if hasattr(config, "refusal") else None
        if refused is None:
            names.append(name)
        else:
            notes.append(f"{name} is left out: {refused}")
    return names, notes
