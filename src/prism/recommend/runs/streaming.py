"""`prism fit` on a prepared log: the model sees every partition, validation a sample of users, the run no events."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from prism.errors import InputError
from prism.files import write_whole
from prism.machine import pick_device
from prism.recommend.config import FitConfig
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.data.splits import Split
from prism.recommend.defaults import facts_of
from prism.recommend.model.experts import Experts
from prism.recommend.model.experts.repeats import fit_repeats
from prism.recommend.model.experts.training import Folds
from prism.recommend.recommender import Recommender
from prism.recommend.runs import storage
from prism.recommend.runs.expert_files import keep_tables, read_tables
from prism.recommend.training.budget import affordable_epochs, epoch_seconds
from prism.recommend.training.opening import FOCUSES, fit_opening
from prism.recommend.training.sharded import ShardedTask, build_sharded
from prism.recommend.training.stream import StreamConfig, StreamTask, sample
from prism.train.folder import is_first_process, own_folder
from prism.train.loop import train
from prism.train.processes import of_first
from prism.train.settings import read_settings, refuse_others

# Of the opening, where the catalogue is large: many events are to come that teach the gates.
SOON, SOON_WINDOWS = {"tokens": 10_000, "steps": 100}, 16
# What a divided item table means for the default.
WITHOUT_EXPERTS = "experts none: a divided item table has rows alone; without --shard-items there are experts"


def fit_streamed(
    prepared: Prepared,
    config: FitConfig,
    out: Path | None,
    *,
    progress: bool = True,
    device: str | None = None,
    workers: int = 1,
    shard_items: bool = False,
) -> Recommender:
    """Trains on all partitions; run again with the same arguments, it goes on where it stopped.

    What the rules choose, they choose from the whole log's counts and a sample of its users. With `shard_items` the
    item table is divided between the processes, and there are no experts.
    """
    began, config, place = time.monotonic(), _usable(config, shard_items), pick_device(device)
    split = sample(prepared, config.batching.valid_queries)
    about = prepared.manifest
    facts = replace(facts_of(split), events=about.trained, users=about.users, items=about.candidates)
    by_clock = "epochs" in config.open
    config, chosen = config.resolve(facts)
    if progress and is_first_process():
        print("\n".join([*map(str, chosen), *([WITHOUT_EXPERTS] if shard_items else [])]), flush=True)
    stream = StreamConfig(workers=workers)
    if shard_items:
        made = Recommender(build_sharded(config, about.candidates, _processes(place)), split, config)
    else:
        made = Recommender._untrained(split, config)
    made.prepared = prepared
    folds = _fit_experts(made, prepared, place, say=print if progress else lambda line: None)
    kind = ShardedTask if shard_items else StreamTask
    task = made.task(kind, prepared=prepared, stream=stream, folds=folds)
    focus = FOCUSES[0] if config.opening is None else config.opening
    if config.objective.loss == "sampled":
        fit_opening(made.model, _in_small_batches(task), focus=focus, **SOON)
    else:
        fit_opening(made.model, task, focus=focus)
    if by_clock and shard_items:
        raise InputError("epochs must be given where the item table is divided: every process must take as many")
    if by_clock:
        made.config = config = config.changed(epochs=_epochs(made, task, out, progress, place, began))
    with own_folder(out):
        if out is not None and is_first_process():
            _open_run(out, prepared, split, config, task.stream)
        train(made.model, task, config.train, out=out, progress=progress, device=place)
    return made


def _epochs(
    made: Recommender, task: StreamTask, out: Path | None, progress: bool, place: torch.device, began: float
) -> int:
    """As many as there is time for; of a run that goes on, what it began with. The same on every process."""
    known = of_first(storage.settled(out), place)
    if known is not None:
        return int(known["epochs"])
    config, each = made.config, of_first(epoch_seconds(made.model, task, place), place)
    left = of_first(60 * config.minutes - (time.monotonic() - began), place)
    return affordable_epochs(config, each, left, progress)


def _in_small_batches(task: StreamTask) -> StreamTask:
    """The same, a few windows at a time: what drawn items take grows with a batch's events."""
    size = min(cast(int, task.batching.batch), SOON_WINDOWS)
    return replace(task, batching=replace(task.batching, batch=size))


def _processes(place: torch.device) -> Any:
    """All processes that torchrun started, apart from the exchange of gradients; None: this one alone."""
    from accelerate import PartialState

    if PartialState(cpu=place.type == "cpu").num_processes == 1:
        return None
    return dist.new_group()


def _fit_experts(
    made: Recommender, prepared: Prepared, place: torch.device, say: Callable[[str], None]
) -> Folds | None:
    """What the experts know of all partitions, counted by the first process if need be; repeats from the sample."""
    gates = made.model.gates
    if gates is None:
        return None
    from accelerate import PartialState

    with PartialState(cpu=place.type == "cpu").main_process_first():
        keep_tables(prepared, say)
    tables, folds = read_tables(prepared)
    timed = made.model.config.query_time
    made.set_experts(
        Experts(tables=tables, repeats=fit_repeats(made.split.train, timed=timed), novel=False, timed=timed)
    )
    return folds


def _usable(config: FitConfig, shard_items: bool) -> FitConfig:
    """Refuses what needs every event at once; a divided item table has no experts."""
    for name, given, remedy in (
        ("protocol", config.protocol != "global-time", "a prepared log is divided by time: leave it out"),
        ("features", bool(config.features), "a prepared log has no table of items: leave it out"),
        ("experts", shard_items and bool(config.experts), "a divided item table has rows alone: leave it out"),
        ("start", config.start == "cooccurrence", "it would need every event at once: leave it out"),
    ):
        if given:
            raise InputError(f"{name} is {getattr(config, name)!r}: {remedy}")
    return replace(config, start="random", rehearsal=False, experts=() if shard_items else config.experts)


def _open_run(out: Path, prepared: Prepared, split: Split, config: FitConfig, stream: StreamConfig) -> None:
    """Makes the run's folder, or finds in it a run of the same config and log that can go on."""
    about = {"folder": str(prepared.folder.absolute()), "digest": prepared.digest}
    about |= {"group": stream.group, "lanes": stream.lanes}  # type: ignore[dict-item]
    if (out / storage.CONFIG).exists():
        refuse_others(out, asdict(config), asdict(storage.read_config(out)), "choose another folder")
        if not storage.is_streamed(out):
            raise InputError(f"{out} holds a run on a log that was not prepared; choose another folder")
        refuse_others(out, about, read_settings(out / storage.STREAMED, "fit it again"), "choose another folder")
        return
    storage.write_items(out, split.log)
    write_whole(out / storage.STREAMED, json.dumps(about, indent=1).encode())
    storage.write_config(out, config)  # last: a folder with a config is a run
