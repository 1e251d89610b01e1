"""A simple baseline that answers in place of the model: fitted to a run's events, kept in a model's folder."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prism.errors import InputError
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.baselines import BASELINES
from prism.recommend.evaluation.ranking import Scorer


@dataclass(frozen=True, kw_only=True, eq=False)
class Baseline:
    """A fitted baseline, as a scorer in PyTorch."""

    name: str
    last: int
    """Events of a history that it looks at."""
    scorer: Scorer

    def __call__(self, log: Log, queries: Queries) -> Tensor:
        """A copy: the scores of popularity are one row for everybody."""
        return torch.tensor(self.scorer(log, queries))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that it was fitted to, for a file; what makes it from them again is `stored_baseline`."""
        if not exportable(self.name):
            raise InputError(
                f"baseline {self.name} answers from other users' events, which an exported model never holds: "
                "let `prism recommend RUN --baseline` answer, or export the model or another baseline"
            )
        given = {field.name: getattr(self.scorer, field.name) for field in fields(self.scorer)}  # type: ignore[arg-type]
        found = {name: part.numpy() if isinstance(part, Tensor) else part for name, part in given.items()}
        return {name: np.ascontiguousarray(part) for name, part in found.items() if isinstance(part, np.ndarray)}


def exportable(name: str) -> bool:
    """Whether a baseline holds nobody's events once it is fitted."""
    return hasattr(BASELINES[name], "restored")


def fitted_baseline(name: str, train: Log) -> Baseline:
    """From training events."""
    config = BASELINES[name]()
    refused = config.refusal(train) if hasattr(config, "refusal") else None
    if not train.n_events:
        refused = "an exported model has no events to fit it to; give the run that it was made of"
    if refused is not None:
        raise InputError(f"baseline {name}: {refused}")
    return Baseline(name=name, last=config.last, scorer=config.fit(train))


def stored_baseline(name: str, arrays: dict[str, NDArray[Any]]) -> Baseline:
    """From what `Baseline.arrays` gave."""
    config = BASELINES[name]()
    return Baseline(name=name, last=config.last, scorer=config.restored(arrays))
