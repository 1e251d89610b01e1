"""The commands `prism fit` and `prism evaluate`."""

import shlex
from pathlib import Path

from tyro.conf import OmitArgPrefixes, Positional

from prism.display.text import plain_lines
from prism.errors import InputError
from prism.recommend.answer.baseline import exportable
from prism.recommend.commands.program import place_of, program
from prism.recommend.config import FitConfig
from prism.recommend.data.known import load, statistics_table
from prism.recommend.data.prepared.manifest import Prepared, is_prepared
from prism.recommend.data.reading import READING, Reading
from prism.recommend.data.splits import split
from prism.recommend.evaluation.baselines import usable
from prism.recommend.evaluation.tables import show_evaluations
from prism.recommend.recommender import Recommender
from prism.train.folder import is_first_process

DEFAULT = FitConfig()


def fit(
    data: Positional[str],
    out: Path,
    config: OmitArgPrefixes[FitConfig] = DEFAULT,
    reading: OmitArgPrefixes[Reading] = READING,
    device: str | None = None,
    threads: int | None = None,
    workers: int = 1,
    shard_items: bool = False,
) -> None:
    """Trains a recommender on a log of (user, item, time); the same command again continues a run that was stopped.

    Args:
        data: A CSV, TSV, Parquet or JSON file (.gz, .zst, .bz2 and .zip too), a pattern of them, a known data set's
            name, or a folder that `prism prepare` made, which is then read a few partitions at a time.
        out: Folder for the run: checkpoints, log.jsonl, config.json, and the events.
        config: What to train and how. What is None here (epochs and lr: 0) is chosen from the log, and printed with the
            reason.
        reading: How the log is read.
        device: Where to train, e.g. cpu or cuda; default: a GPU where there is one.
        threads: Threads of the CPU; default: as many as torch takes.
        workers: Threads that make batches of a prepared log beside the training step; the result does not depend on
            them.
        shard_items: Divide the item table of a model on a prepared log between the processes (with torchrun).
    """
    where = place_of(device, threads)
    if is_prepared(Path(data)):
        if reading != READING:
            raise InputError(f"{data} is prepared: its columns, times and items were read by `prism prepare`")
        _fit_prepared(Path(data), out, config, where, device, workers, shard_items)
        return
    if shard_items:
        raise InputError(f"shard_items is for a prepared log: `prism prepare {data} --out DATA` makes one")
    log = load(data, reading)
    divided = split(log, config.protocol)
    if is_first_process():
        print(plain_lines("\n".join([statistics_table(log), *log.notes, divided.describe(), where])), flush=True)
    recommender = Recommender.fit_split(divided, config, out, progress=True, device=device)
    if is_first_process() and len(divided.valid):
        show_evaluations(f"{config.mixer}, validation", {config.mixer: recommender.evaluate(valid=True)})
        prism, run = program(), shlex.quote(str(out))
        print(f"next: {prism} evaluate {run} · {prism} recommend {run} --user {shlex.quote(str(log.user_ids[0]))}")


def _fit_prepared(
    data: Path, out: Path, config: FitConfig, where: str, device: str | None, workers: int, shard_items: bool
) -> None:
    from prism.recommend.runs.streaming import fit_streamed

    prepared, main = Prepared.open(data), is_first_process()
    about = prepared.manifest
    if main:
        sizes = f"{about.events:,} events of {about.users:,} users, {about.trained:,} to train on"
        print(f"{data}: {sizes}, {about.candidates:,} candidates, {len(prepared):,} partitions\n{where}", flush=True)
    options = {"device": device, "workers": workers, "shard_items": shard_items}
    recommender = fit_streamed(prepared, config, out, progress=True, **options)  # type: ignore[arg-type]
    if main and shard_items:
        print(f"next: {program()} evaluate {shlex.quote(str(out))}")  # one process then has all items
    elif main:
        title = f"{config.mixer}, validation, a sample of users"
        show_evaluations(title, {config.mixer: recommender.evaluate(valid=True)})


def evaluate(
    run: Positional[Path],
    valid: bool = False,
    baselines: bool = True,
    device: str | None = None,
    threads: int | None = None,
) -> None:
    """Measures a run on its test events: every item ranked for each, beside six simple baselines.

    Args:
        run: A folder that `prism fit` made.
        valid: Use the validation events: compare settings on these, and read the test events once.
        baselines: Also evaluate the simple baselines: popularity, repeat-last, Markov, item-kNN, session-kNN, EASE.
        device: Where the model runs, e.g. cpu or cuda; default: a GPU where there is one.
        threads: Threads of the CPU; default: as many as torch takes.
    """
    where = place_of(device, threads)
    recommender = Recommender.load(run, device=device)
    print(f"{recommender.split.describe()}\n{where}", flush=True)
    found = {recommender.config.mixer: recommender.evaluate(valid=valid)}
    if baselines:
        found |= recommender.evaluate_baselines(valid=valid)
        print("".join(f"{line}\n" for line in usable(recommender.split.train)[1]), end="")
    show_evaluations(f"{run}, {'validation' if valid else 'test'}", found)
    metric = f"ndcg@{recommender.config.ranks[0]}"
    ahead = max(found, key=lambda name: found[name][metric])
    if ahead != recommender.config.mixer:
        print(_instead(run, ahead, valid))


def _instead(run: Path, baseline: str, valid: bool) -> str:
    """What to do where a simple baseline is ahead."""
    answer = f"export {run} MODEL" if exportable(baseline) else f"recommend {run} …"
    ask = "" if valid else f" If it is on validation events too (`{program()} evaluate {run} --valid`), let it answer:"
    return (
        f"{baseline} is ahead of the model.{ask or ' To let it answer:'} `{program()} {answer} --baseline {baseline}`"
    )
