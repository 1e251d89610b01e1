"""The commands `prism fit`, `prism evaluate` and `prism recommend`."""

import shlex
from pathlib import Path
from typing import Any

import torch
from tyro.conf import OmitArgPrefixes, Positional

from prism.display.tables import show
from prism.display.text import plain_lines
from prism.errors import InputError
from prism.machine import pick_device, use_threads
from prism.recommend.answer.baseline import exportable
from prism.recommend.answer.choose import Filter, Recommendation
from prism.recommend.commands.program import program
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
    where = _where(device, threads)
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
    where = _where(device, threads)
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


def recommend(
    run: Positional[Path],
    user: str | None = None,
    history: tuple[str, ...] | None = None,
    all: Path | None = None,
    k: int = 10,
    seen: bool | None = None,
    allow: tuple[str, ...] | None = None,
    deny: tuple[str, ...] | None = None,
    allow_where: tuple[str, ...] = (),
    deny_where: tuple[str, ...] = (),
    events: str | None = None,
    baseline: str | None = None,
    partition: str | None = None,
    ray: str | None = None,
    partitions: int = 16,
    device: str | None = None,
    threads: int | None = None,
) -> None:
    """The items most likely to come next for a user, for a history, or for all users.

    Args:
        run: A folder that `prism fit` made.
        user: A user of the run's log.
        history: Items of anyone, oldest first.
        all: Write recommendations for all users to this file: .parquet, .csv or .jsonl; with `partition` or `ray` to
            this folder, one .parquet per partition.
        k: How many.
        seen: Whether items of the history may be recommended; default: as the run's protocol has it.
        allow: Recommend only these items.
        deny: Never recommend these items.
        allow_where: Recommend only items whose table has these values, as column=value.
        deny_where: Never items whose table has them.
        events: A log of events that came after training, as `prism fit` takes it.
        baseline: Let a simple baseline answer in place of the model, where `prism evaluate` finds it ahead.
        partition: Of `all`, only users of partition i of P, by hash: i/P. Made again, only users with other events are.
        ray: Of `all`, every partition as a task of Ray at this address, or `local`.
        partitions: Partitions with `ray`.
        device: Where the model runs, e.g. cpu or cuda; default: a GPU where there is one.
        threads: Threads of the CPU; default: as many as torch takes.
    """
    if all is None and (partition is not None or ray is not None):
        raise InputError("partition and ray are for all users: give --all OUT")
    if sum(x is not None for x in (user, history, all)) != 1:
        raise InputError("give one of --user U, --history A B C, --all OUT.parquet")
    where = _where(device, threads)
    allowed, denied = by_column("allow", allow, allow_where), by_column("deny", deny, deny_where)
    exclude = None if seen is None else not seen
    if all is not None and (partition is not None or ray is not None):
        if baseline is not None:
            raise InputError("a baseline answers for all users at once: leave out --partition and --ray")
        options = {"k": k, "exclude_seen": exclude, "allow": allowed, "deny": denied, "events": events}
        _write_parts(run, all, partition, ray, partitions, device, options)
        return
    recommender = Recommender.load(run, device=device)
    if baseline is not None:
        recommender = recommender.with_baseline(baseline)
    if events is not None:
        recommender = recommender.with_events(events)
    if all is not None:
        rows = recommender.recommend_all(all, k=k, exclude_seen=exclude, allow=allowed, deny=denied)
        print(f"{rows:,} rows for {recommender.log.n_users:,} users in {all}; {where}")
        return
    found = recommender.recommend(user, history=history, k=k, exclude_seen=exclude, allow=allowed, deny=denied)
    show_items("recommendations", found, caption=where)


def _write_parts(
    run: Path,
    out: Path,
    partition: str | None,
    ray: str | None,
    parts: int,
    device: str | None,
    options: dict[str, Any],
) -> None:
    """One partition here, or all of them on Ray."""
    from prism.recommend.answer.batch import BatchJob, read_partition, write_on_ray, write_partition

    if partition is not None and ray is not None:
        raise InputError("give one of --partition i/P and --ray ADDRESS")
    if partition is not None:
        number, parts = read_partition(partition)
        job = BatchJob(run=run, out=out, parts=parts, device=device, **options)
        done = [write_partition(job, number)]
    else:
        assert ray is not None
        done = write_on_ray(BatchJob(run=run, out=out, parts=parts, device=device, **options), ray)
    rows, users, scored = (sum(column) for column in list(zip(*done, strict=True))[1:])
    print(f"{rows:,} rows for {users:,} users in {out}; {users - scored:,} users had no new events and were kept")


def show_items(title: str, found: list[Recommendation], *, caption: str | None = None) -> None:
    """One row per item, best first."""
    rows = [[str(n + 1), str(one.item), one.name or "", f"{one.score:z.3f}"] for n, one in enumerate(found)]
    columns, rows = named_columns(["rank", "item", "name", "score"], rows)
    show(title, columns, rows, caption=caption, left=tuple(range(len(columns) - 1)))


def named_columns(columns: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Without the column of names, where no item has one."""
    at = columns.index("name")
    if any(row[at] for row in rows):
        return columns, rows
    return columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]


def by_column(option: str, items: tuple[str, ...] | None, where: tuple[str, ...]) -> Filter | None:
    """Ids, or conditions `column=value` of which those of one column are alternatives."""
    if not where:
        return items
    if items is not None:
        raise InputError(f"give one of --{option} and --{option}-where")
    wanted: dict[str, list[str]] = {}
    for condition in where:
        column, sign, value = condition.partition("=")
        if not sign:
            raise InputError(f"--{option}-where takes column=value, got {condition!r}")
        wanted.setdefault(column, []).append(value)
    return wanted


def _where(device: str | None, threads: int | None) -> str:
    """Sets the threads and says where the model runs."""
    use_threads(threads)
    place = pick_device(device)
    return f"on {place}" + (f", {torch.get_num_threads()} thread(s)" if place.type == "cpu" else "")
