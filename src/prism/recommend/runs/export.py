"""A model's folder, for answering: weights, items and config with checksums, and no user's events.

`model.json` says what the other files are: format and version, the config, the sha256 of each file, and what the model
was made from in numbers.
"""

import json
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from prism.errors import InputError
from prism.files import checksum, whole_folder
from prism.recommend.answer.baseline import stored_baseline
from prism.recommend.config import FitConfig
from prism.recommend.data.items import ItemValues
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Split, no_queries
from prism.recommend.model.experts import experts_from
from prism.recommend.runs import storage
from prism.recommend.runs.storage import ABOUT
from prism.recommend.trained import Made, Trained
from prism.train.settings import read_settings

FORMAT, VERSION, WEIGHTS, VALUES = "prism-model", 4, "model.safetensors", "values.safetensors"
EXPERTS, BASELINE = "experts.safetensors", "baseline.safetensors"


def is_model(folder: Path) -> bool:
    """Whether a folder holds what `export` writes."""
    return (folder / ABOUT).is_file()


def export(recommender: Trained, folder: Path) -> dict[str, Any]:
    """Writes the folder, whole or not at all, and gives what its `model.json` says."""
    if folder.exists():
        raise InputError(f"{folder} exists: give a new folder for the model, so that none is lost")
    with whole_folder(folder) as part:
        return _write(recommender, part)


def _write(recommender: Trained, part: Path) -> dict[str, Any]:
    from safetensors.numpy import save_file as save_arrays
    from safetensors.torch import save_file

    model, log = recommender.model, recommender.log
    weights: dict[str, Tensor] = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    save_file(weights, part / WEIGHTS)
    storage.write_items(part, first_items(log, model.items))
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "config": asdict(recommender.config),
        "excludes_seen": recommender.excludes_seen,
        "items": model.items,
        "made_from": {
            "name": log.name,
            "users": int((recommender.split.train.lengths > 0).sum()),
            "events": recommender.split.train.n_events,
            "latest": int(recommender.split.train.times.max(initial=0)),
            "columns": dict(log.columns),
        },
    }
    if model.features is not None:
        of = model.features.of
        save_arrays({"values": of.values, "weights": of.weights, "offsets": of.offsets}, part / VALUES)
        about["values"] = list(of.names)
    if recommender.experts is not None:
        save_arrays({name: np.ascontiguousarray(x) for name, x in recommender.experts.arrays().items()}, part / EXPERTS)
    if recommender.baseline is not None:
        about["baseline"] = recommender.baseline.name
        save_arrays(recommender.baseline.arrays(), part / BASELINE)
    about["checksums"] = {path.name: checksum(path) for path in sorted(part.iterdir())}
    content = about["checksums"] | ({"baseline": about["baseline"]} if "baseline" in about else {})
    about["id"] = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    (part / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
    for path in part.iterdir():
        path.chmod(0o644)  # safetensors lets only the owner read
    return about


def read_about(folder: Path) -> dict[str, Any]:
    """What `model.json` says, once every file's checksum is right."""
    path = folder / ABOUT
    about = read_settings(path, "export the run again")
    if about.get("format") != FORMAT:
        raise InputError(f"{path} is not of a model that `prism export` wrote: its format is {about.get('format')!r}")
    if about.get("version") != VERSION:
        raise InputError(
            f"{folder} has version {about.get('version')!r} of the format and this prism reads version {VERSION}: "
            "export the run again with this prism"
        )
    lacking = [
        name for name in ("config", "excludes_seen", "items", "made_from", "checksums", "id") if name not in about
    ]
    if lacking:
        raise InputError(f"{path} is damaged, it has no {lacking[0]!r}: export the run again")
    for name, wanted in about["checksums"].items():
        try:
            found = checksum(folder / name)
        except OSError as error:
            raise InputError(f"{folder / name} cannot be read: {error.strerror}; export the run again") from None
        if found != wanted:
            raise InputError(
                f"{folder / name} is damaged: its checksum is not that of model.json; export the run again"
            )
    return about


def load_model(cls: type[Made], folder: Path) -> Made:
    """The recommender that a folder holds; it knows items and no user."""
    from safetensors.numpy import load_file as load_arrays
    from safetensors.torch import load_file

    about = read_about(folder)
    config = FitConfig.from_json(json.dumps(about["config"]))
    values = None
    if "values" in about:
        values = ItemValues(names=tuple(about["values"]), **load_arrays(folder / VALUES))
    log = replace(storage.read_items(folder, folder.name), columns=about["made_from"].get("columns", {}))
    if log.n_items != about["items"]:
        raise InputError(f"{folder} lists {log.n_items} items for a model of {about['items']}; export the run again")
    nothing = no_queries(log.n_items, remove_seen=bool(about["excludes_seen"]))
    split = Split(protocol=config.protocol, log=log, train=log, valid=nothing, test=nothing)
    made = cls(config.build(log.n_items, values), split, config)
    try:
        made.model.load_state_dict(load_file(folder / WEIGHTS))
    except RuntimeError as error:
        raise InputError(f"{folder / WEIGHTS} is not of this config: {' '.join(str(error).split())[:200]}") from None
    gates = made.model.gates
    if "baseline" in about:
        made.baseline = stored_baseline(about["baseline"], load_arrays(folder / BASELINE))
    elif gates is not None:
        made.experts = experts_from(
            load_arrays(folder / EXPERTS),
            gates.repeats.double().numpy(),
            novel=nothing.remove_seen,
            timed=made.model.config.query_time,
        )
    made.id = about["id"]
    made.model.eval()
    return made


def first_items(log: Log, count: int) -> Log:
    """A log of the first `count` items, without events."""
    return log.recoded(users=np.zeros(0, dtype=np.int64), items=np.arange(count))
