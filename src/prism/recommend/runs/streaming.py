"""`prism fit` on a prepared log: the model sees every partition, validation a sample of users, the run no events."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from prism.errors import InputError
from prism.files import write_whole
from prism.machine import pick_device
from prism.recommend.config import FitConfig
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.data.splits import Split
from prism.recommend.defaults import facts_of
from prism.recommend.recommender import Recommender
from prism.recommend.runs import storage
from prism.recommend.training.budget import affordable_epochs
from prism.recommend.training.sharded import ShardedTask, build_sharded
from prism.recommend.training.stream import StreamConfig, StreamTask, sample
from prism.train.folder import is_first_process, own_folder
from prism.train.keeper import load_best
from prism.train.loop import train
from prism.train.settings import read_settings, refuse_others


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

    What the rules choose, they choose from the whole log's counts and a sample of its users. There are no experts:
    their tables would need every event at once. With `shard_items` the item table is divided between the processes.
    """
    config, place = _usable(config), pick_device(device)
    split = sample(prepared, config.batching.valid_queries)
    about = prepared.manifest
    facts = replace(facts_of(split), events=about.trained, users=about.users, items=about.candidates)
    by_clock = "epochs" in config.open
    config, chosen = config.resolve(facts)
    if progress and is_first_process():
        print("\n".join(map(str, chosen)), flush=True)
    stream = StreamConfig(workers=workers)
    if shard_items:
        made = Recommender(build_sharded(config, about.candidates, _processes(place)), split, config)
    else:
        made = Recommender._untrained(split, config)
    task = stream_task(made, prepared, stream, ShardedTask if shard_items else StreamTask)
    if by_clock and shard_items:
        raise InputError("epochs must be given where the item table is divided: every process must take as many")
    if by_clock:
        epochs = affordable_epochs(made.model, task, config, 60 * config.minutes, out, progress)
        made.config = config = config.changed(epochs=epochs)
    with own_folder(out):
        if out is not None and is_first_process():
            _open_run(out, prepared, split, config, task.stream)
        train(made.model, task, config.train, out=out, progress=progress, device=place)
    return made


def _processes(place: torch.device) -> Any:
    """All processes that torchrun started, apart from the exchange of gradients; None: this one alone."""
    from accelerate import PartialState

    if PartialState(cpu=place.type == "cpu").num_processes == 1:
        return None
    return dist.new_group()


def stream_task(
    made: Recommender, prepared: Prepared, stream: StreamConfig, kind: type[StreamTask] = StreamTask
) -> StreamTask:
    """What training minimises and watches."""
    whole = made.task()
    given = {one.name: getattr(whole, one.name) for one in fields(whole)}
    return kind(prepared=prepared, stream=stream, **given)


def load_streamed(folder: Path, place: torch.device) -> Recommender:
    """A run of `fit_streamed` with its sample of users, from the prepared log where that lies."""
    config, prepared = storage.read_config(folder), prepared_of(folder)
    made = Recommender._untrained(sample(prepared, config.batching.valid_queries), config)
    load_best(made.model, folder)
    made.model.to(place)
    return made


def prepared_of(run: Path) -> Prepared:
    """The prepared log that a run was trained on, if it is still what it was."""
    about = read_settings(run / storage.STREAMED, "fit it again")
    found = Prepared.open(Path(about["folder"]))
    if found.digest != about["digest"]:
        raise InputError(f"{found.folder} was prepared anew after {run} was trained on it: fit it again")
    return found


def _usable(config: FitConfig) -> FitConfig:
    """Refuses what needs every event at once."""
    for name, given, remedy in (
        ("protocol", config.protocol != "global-time", "a prepared log is divided by time: leave it out"),
        ("features", bool(config.features), "a prepared log has no table of items: leave it out"),
        ("experts", bool(config.experts), "their tables would need every event at once: leave it out"),
        ("start", config.start != "random", "it would need every event at once: leave it out"),
    ):
        if given:
            raise InputError(f"{name} is {getattr(config, name)!r}: {remedy}")
    return replace(config, experts=())


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
