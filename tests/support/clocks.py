"""A fit whose processes measure different times, each in a process of its own, up to where it would train."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from support.sharded import CONFIG
from torch import nn

from prism.recommend import trained
from prism.recommend.config import FitConfig
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.data.synthetic import kinds_log
from prism.recommend.recommender import Recommender
from prism.recommend.runs import streaming
from prism.recommend.training import rehearsal
from prism.train.config import TrainConfig
from prism.train.position import Position

# Of an epoch, on each process: by the first a minute suffices for two rehearsals and five epochs, by the other for one.
SECONDS = (5.0, 60.0)


def settle(rank: int, data: Path | None, out: Path) -> None:
    """Leaves what each training would have been told; `data`: a prepared log."""
    found = list[str]()

    def train(model: nn.Module, task: Any, config: TrainConfig, **given: Any) -> Position:
        found.append(f"epochs {config.epochs}, lr {config.lr:g}, focus {task.objective.focus}")
        return Position(best=0.1 * len(found))

    for place in (trained, streaming, rehearsal):
        for name, stand_in in (("train", train), ("epoch_seconds", lambda *given: SECONDS[rank])):
            if hasattr(place, name):
                patch.object(place, name, stand_in).start()
    if data is None:
        log = kinds_log(users=40, items=60, events=2000, kinds=4)
        config = FitConfig(dim=8, minutes=1.0, opening=0.5)
        Recommender.fit(log, config, out=out / "run", progress=False, device="cpu")
    else:
        config = replace(CONFIG, minutes=1.0, train=replace(CONFIG.train, epochs=0))
        streaming.fit_streamed(Prepared.open(data), config, out / "run", progress=False, device="cpu")
    out.mkdir(exist_ok=True)
    (out / f"{rank}.txt").write_text("\n".join(found))
