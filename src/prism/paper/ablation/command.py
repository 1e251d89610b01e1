"""`prism paper ablation`: PRISM without one part at a time, at equal parameters, beside the paper's component ablation.

Every variant trains on the same batches in the same number of updates; what a variant lacks, its SwiGLU has more.
"""

import json
from dataclasses import asdict, replace
from os import cpu_count
from pathlib import Path
from typing import Any

from tyro.conf import OmitArgPrefixes, Positional

from prism.config import one_of, positive
from prism.errors import InputError
from prism.files import write_whole
from prism.layers.spelling import read_mixers, with_options
from prism.machine import machine
from prism.models.matching import count_parameters, matched_ffn
from prism.paper.ablation.report import Answers, Part, show_parts
from prism.recommend.commands.compare import compare_on, run_folder, variant
from prism.recommend.config import FitConfig
from prism.recommend.data.known import load, statistics_table
from prism.recommend.data.log import Log
from prism.recommend.data.reading import READING, Reading
from prism.recommend.data.splits import split
from prism.recommend.evaluation.rows import refuse_failures
from prism.recommend.training.task import BatchConfig
from prism.train.config import TrainConfig

FULL = "full"
# What each variant changes in PRISM's config.
VARIANTS: dict[str, tuple[str, ...]] = {
    FULL: (),
    "no-refinement": ("steps=0",),
    "identity": ("nonlinearity=identity",),
    "no-anchor": ("anchor=none",),
    "no-gain": ("gain=none",),
}
# The demo's setting with a second block, since in a model of one the anchor is all that sees neighbours beside the
# memory; two minutes of one core per run. By global time: the paper's protocol takes users and candidates from the
# whole log. The epoch is chosen by validation NDCG at the first cut-off.
CONFIG = FitConfig(
    dim=64,
    layers=2,
    dropout=0.1,
    time_gaps=True,
    query_time=True,
    experts=(),
    projection=True,
    cutoffs=(10, 200, 500),
    batching=BatchConfig(batch=6, length=100, windows="all", valid_queries=1000),
    train=TrainConfig(epochs=4, lr=3e-3, patience=10),
)


def ablation(
    data: Positional[str] = "online-retail",
    /,
    *,
    variants: tuple[str, ...] = tuple(VARIANTS),
    seeds: int = 3,
    config: OmitArgPrefixes[FitConfig] = CONFIG,
    processes: int = cpu_count() or 1,
    out: Path = Path("runs/ablation"),
    reading: OmitArgPrefixes[Reading] = READING,
) -> None:
    """PRISM without refinement, nonlinearity, anchor or gain, at equal parameters: what each part is worth.

    Runs that OUT already holds are not run again, so that the same command continues what was stopped.

    Args:
        data: The shipped purchases, another known data set's name, or a log of your own.
        variants: Of full, no-refinement, identity, no-anchor, no-gain; full is always there to compare with.
        seeds: Runs of each, with seeds 0, 1, …
        config: What to train and how, the same for all; `seed` is set here, and `ffn` is full PRISM's.
        processes: Runs at a time; more than one show no progress bars and have a thread each.
        out: Folder of the runs and of ablation.json.
        reading: How the log is read.
    """
    positive(seeds=seeds, processes=processes)
    for name in variants:
        one_of("variants", name, tuple(VARIANTS))
    configs = {name: without(config, name) for name in VARIANTS if name in (FULL, *variants)}
    log = load(data, reading)
    run_ablation(log, config, configs, seeds=seeds, processes=processes, out=out)


def run_ablation(
    log: Log,
    config: FitConfig,
    configs: dict[str, FitConfig],
    *,
    seeds: int,
    processes: int,
    out: Path,
    progress: bool = True,
) -> list[Part]:
    """Everything the command does, with any log and configs; gives the table's rows."""
    divided = split(log, config.protocol)
    print("\n".join([statistics_table(log), *log.notes, divided.describe()]), flush=True)
    rows = compare_on(divided, config, configs, seeds, out, progress=progress, processes=processes)
    parts = _parts([row.name for row in rows if row.runs], configs, out, seeds, divided.train.n_items)
    show_parts(f"{log.name}, {config.protocol}, test", parts, rows, config.ranks)
    record: dict[str, Any] = {
        "machine": machine(),
        "data": log.name,
        "split": divided.describe(),
        "config": asdict(config),
        "seeds": seeds,
        "parts": [asdict(part) for part in parts],
    }
    write_whole(out / "ablation.json", json.dumps(record, indent=1).encode())
    print(f"wrote {out}/ablation.json")
    refuse_failures(rows)
    return parts


def _parts(names: list[str], configs: dict[str, FitConfig], out: Path, seeds: int, items: int) -> list[Part]:
    """A row for each name, from what the runs left in `out`."""
    cutoffs = configs[FULL].ranks
    found = {}
    for name in names:
        files = [run_folder(out, name, seed) / "test.json" for seed in range(seeds)]
        if name not in configs:
            files = [out / f"{name}.json"]
        found[name] = Answers.read({seed: file for seed, file in enumerate(files) if file.exists()}, cutoffs)
    full = found.get(FULL)
    return [
        Part(
            name=name,
            parameters=parameters(configs[name], items) if name in configs else None,
            values=answers.measured(),
            differences=answers.minus(full) if full and name in configs and name != FULL else {},
        )
        for name, answers in found.items()
    ]


def without(config: FitConfig, name: str) -> FitConfig:
    """The config of a variant: one field of PRISM's changed, the SwiGLU as wide as equal parameters ask."""
    if [mixer.name for mixer in read_mixers(config.mixer)] != ["prism"]:
        raise InputError(f"mixer must be prism, with fields that all variants share; got {config.mixer!r}")
    full = variant(config, config.mixer)
    changed = replace(full, mixer=with_options(full.mixer, *VARIANTS[name]))
    backbone = full.model().backbone
    ffn = matched_ffn(changed.model().backbone.mixers[0], backbone.mixers[0], dim=backbone.dim, ffn=backbone.hidden)
    return replace(changed, ffn=ffn)


def parameters(config: FitConfig, items: int) -> int:
    """How many a model of so many items has."""
    return count_parameters(lambda: config.model().build(items))
