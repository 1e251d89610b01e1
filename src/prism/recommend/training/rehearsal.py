"""Two ways to learn a log, tried before training: each for some epochs from the opening, judged on validation.

The rules choose the careful one, by what the opening minimised and slowly, which suits most logs: the model then
adds to the experts and takes nothing away. The bold one, by likelihood and fast, departs from what the experts know
before it is better; where what comes next hangs on kinds of items rather than on single ones, it ends far ahead.
"""

from dataclasses import replace

import numpy as np
import torch

from prism.recommend.config import FitConfig
from prism.recommend.defaults import BOLD
from prism.recommend.model.recommender import RecommenderModel
from prism.recommend.training.task import RecommendationTask
from prism.train.folder import is_first_process
from prism.train.loop import train

# Of the time that a run may take, what both ways may take together.
SHARE = 0.4
# Epochs of each: fewer say nothing, more say nothing else.
FEWEST, MOST = 2, 3
# So much better the bold way must be: what it forgets of the experts, validation may not have asked about.
LEAD = 1.01


def rehearsed(
    model: RecommenderModel,
    task: RecommendationTask,
    config: FitConfig,
    *,
    each: float,
    progress: bool,
    device: torch.device,
) -> FitConfig:
    """With the lr and focus of the way that is ahead; the model is left as it was. An epoch takes `each` seconds."""
    ways = (config, config.with_options(dict(BOLD)))
    most = min(MOST, config.train.epochs)
    epochs = int(np.clip(SHARE * 60 * config.minutes / (len(ways) * each), 0, most))
    if epochs < min(FEWEST, most):
        _say(f"no rehearsal: an epoch takes about {each:.0f} s, and {config.minutes:g} minutes are given", progress)
        return config
    opening = {name: value.clone() for name, value in model.state_dict().items()}
    found = []
    for way in ways:
        _say(f"rehearsal of lr {way.train.lr:g}, focus {way.objective.focus:g}: epochs {epochs}", progress)
        trial = replace(way.train, epochs=epochs)
        at = train(model, task.changed(way.objective), trial, progress=progress, device=device)
        found.append(at.best or 0.0)  # that of the opening, where no epoch is better
        model.load_state_dict(opening)
    best = int(found[1] > LEAD * found[0])
    chosen = ways[best]
    _say(
        f"lr {chosen.train.lr:g}, focus {chosen.objective.focus:g}: {task.monitor} {found[best]:.4f} in rehearsal, "
        f"{found[1 - best]:.4f} the other way",
        progress,
    )
    return chosen


def _say(line: str, progress: bool) -> None:
    if progress and is_first_process():
        print(line, flush=True)
