"""A run of `fit_streamed`, opened again."""

from pathlib import Path
from typing import TypeVar

import torch

from prism.errors import InputError
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.model.experts import Experts
from prism.recommend.runs import storage
from prism.recommend.runs.expert_files import keep_tables, read_tables
from prism.recommend.trained import Trained
from prism.recommend.training.stream import sample
from prism.train.keeper import load_best
from prism.train.settings import read_settings

Made = TypeVar("Made", bound=Trained)


def load_streamed(cls: type[Made], folder: Path, place: torch.device) -> Made:
    """A run of `fit_streamed` with its sample of users, from the prepared log where that lies."""
    config, prepared = storage.read_config(folder), prepared_of(folder)
    made = cls._untrained(sample(prepared, config.batching.valid_queries), config)
    made.prepared = prepared
    load_best(made.model, folder)
    gates = made.model.gates
    if gates is not None:
        keep_tables(prepared, print)
        repeats, timed = gates.repeats.double().cpu().numpy(), made.model.config.query_time
        made.experts = Experts(tables=read_tables(prepared)[0], repeats=repeats, novel=False, timed=timed)
    made.model.to(place)
    return made


def prepared_of(run: Path) -> Prepared:
    """The prepared log that a run was trained on, if it is still what it was."""
    about = read_settings(run / storage.STREAMED, "fit it again")
    found = Prepared.open(Path(about["folder"]))
    if found.digest != about["digest"]:
        raise InputError(f"{found.folder} was prepared anew after {run} was trained on it: fit it again")
    return found
