"""`prism paper rank`: what rank is for. State tracking and writing, over mixers, beyond the training length."""

from os import cpu_count
from pathlib import Path
from typing import Annotated

import tyro

from prism.probes.command import probe
from prism.probes.settings import ProbeSettings
from prism.probes.training import ProbeTraining

TRACKING = ("running-parity", "modular-counting", "s3", "s4", "a5", "s5")
WRITING = ("last-write", "multi-value-recall")
MIXERS = (
    "prism", "prism:forget=all", "prism:rewrite", "prism:tracking", "deltaproduct", "gated-deltanet", "rwkv7",
    "attention",
)  # fmt: skip

# Chosen with prism:tracking on S3, seed 0: with 1,500 updates, the last fifth of them at full length, it had .986 at
# four times the length. The recall tasks are asked in 32 tokens, where a mixer either learns them or does not.
SETTINGS = ProbeSettings(memory_length=32, training=ProbeTraining(steps=2500, growing=0.5))


def rank(
    tasks: tuple[str, ...] = (*TRACKING, *WRITING),
    mixers: tuple[str, ...] = MIXERS,
    seeds: int = 3,
    settings: Annotated[ProbeSettings, tyro.conf.arg(name="")] = SETTINGS,
    processes: int = cpu_count() or 1,
    only_finished: bool = False,
    out: Path = Path("runs/rank"),
) -> None:
    """State tracking at 1, 4 and 16 times the training length, overwriting, several facts per token; it continues.

    Args:
        tasks: Names of probes.
        mixers: Names from `prism list`, with fields after a colon.
        seeds: Runs of each, with seeds 0, 1, …
        settings: Model and training, the same for all.
        processes: Runs at a time, each on one thread.
        only_finished: Train nothing: the table and the pictures of those runs that OUT holds.
        out: Folder of the results: TASK/MIXER-SEED.json, table.txt, curves.png, lengths.png.
    """
    probe(
        tasks, mixers=mixers, seeds=seeds, settings=settings, processes=processes, only_finished=only_finished, out=out
    )
