"""From an experiment to the model that answers: the same training on every event, as long as validation found best."""

from dataclasses import replace
from pathlib import Path

from prism.errors import InputError
from prism.recommend.data.splits import All
from prism.recommend.recommender import Recommender
from prism.recommend.runs.storage import read_config
from prism.train import checkpoints


def best_epochs(run: Path) -> int:
    """How many epochs a run had trained for when validation was best; 0: the experts alone were."""
    read_config(run)
    best = checkpoints.newest(run, "best")
    facts = {} if best is None else checkpoints.load_facts(best)
    if "best_epoch" not in facts:
        raise InputError(f"{run} has no best epoch: it was not trained by `prism fit`")
    return int(facts["best_epoch"]) + 1


def refit(run: Path, out: Path, *, progress: bool = True, device: str | None = None) -> Recommender:
    """Trains anew on every event of a run, with its config, for as many epochs as validation found best there.

    The learning rate's cosine spans those epochs: it ends where training does.
    """
    before = Recommender.load(run, device="cpu")
    before.refuse_sample("refit")
    if before.split.protocol == "all":
        raise InputError(f"{run} was trained on every event already: there is no validation to learn its length from")
    epochs = best_epochs(run)
    config = replace(
        before.config,
        protocol="all",
        exclude_seen=before.excludes_seen,
        train=replace(before.config.train, epochs=max(epochs, 1)),
    )
    split = All(remove_seen=before.excludes_seen).split(before.log)
    if not epochs:
        made, _ = Recommender.opening(split, config)
        made.save(out)
        return made
    return Recommender.fit_split(split, config, out, progress, device=device)
