"""`prism compare`: many mixers and seeds on one log, in the paper's table; started again, it does what is left."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
from tyro.conf import OmitArgPrefixes, Positional

from prism.config import at_least
from prism.errors import InputError
from prism.files import write_whole
from prism.machine import pick_device, use_threads
from prism.recommend.config import FitConfig
from prism.recommend.data.known import load, statistics_table
from prism.recommend.data.reading import READING, Reading
from prism.recommend.data.splits import Split, split
from prism.recommend.defaults import facts_of
from prism.recommend.evaluation.baselines import BASELINES, usable
from prism.recommend.evaluation.ranking import Evaluation, evaluate
from prism.recommend.evaluation.rows import Failure, Metrics, Row, refuse_failures, show_rows
from prism.recommend.recommender import Recommender
from prism.recommend.runs.storage import open_run, write_frame
from prism.train.jobs import at_once, run_all

DEFAULT = FitConfig()


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """One run of a comparison: a system and a seed."""

    system: str
    config: FitConfig
    split: Split
    folder: Path
    progress: bool
    device: str | None

    @property
    def result(self) -> Path:
        """Where its metrics lie once it is done."""
        return self.folder / "test.json"

    def run(self) -> Metrics | Failure:
        """Trains and tests; a run that cannot go on, because it diverged for one, gives its reason."""
        if self.progress:
            print(f"{self.folder.name}:", flush=True)
        try:
            return once(self.result, self._evaluation)
        except InputError as error:
            return Failure(self.folder.name, str(error))

    def _evaluation(self) -> Evaluation:
        made = Recommender.fit_split(
            self.split, self.config, self.folder, self.progress, store=False, device=self.device
        )
        return made.evaluate()


def compare(
    data: Positional[str],
    out: Path,
    mixers: tuple[str, ...] = ("prism", "gated-deltanet", "sasrec", "hstu"),
    seeds: int = 1,
    config: OmitArgPrefixes[FitConfig] = DEFAULT,
    processes: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    reading: OmitArgPrefixes[Reading] = READING,
) -> None:
    """Trains several mixers with several seeds and prints one table, beside simple baselines; run again, it continues.

    Args:
        data: A CSV, TSV, Parquet or JSON-lines file, a pattern of them, or a known data set's name.
        out: Folder of the runs: one folder per mixer and seed.
        mixers: Each as `prism fit --mixer` takes it: prism prism:steps=0 prism:keys=shared,anchor=none prism,attention.
        seeds: Runs of each mixer, with seeds 0, 1, …
        config: What to train and how, the same for all; `mixer` and `seed` are set by the comparison.
        processes: How many runs at the same time: the faster way to train many small models. 1: one after the other,
            with a progress bar. Default: as many as the cores have threads for; 1 on a GPU.
        device: Where to train, e.g. cpu or cuda; default: a GPU where there is one.
        threads: Threads of each run; default: one where several run at the same time, else as many as torch takes.
        reading: How the log is read.
    """
    at_least("seeds", seeds, 1)
    use_threads(threads)
    place = pick_device(device)
    processes = at_once(place, threads) if processes is None else processes
    at_least("processes", processes, 1)
    configs = {name: variant(config, name) for name in mixers}  # a wrong name is refused before anything is read
    if not configs:
        raise InputError("mixers is empty: give at least one name of `prism list`")
    log = load(data, reading)
    divided = split(log, config.protocol)
    print("\n".join([statistics_table(log), *log.notes, divided.describe()]), flush=True)
    config, chosen = config.resolve(facts_of(divided))
    print("\n".join(map(str, chosen)), flush=True)
    configs = {name: variant(config, name) for name in mixers}
    rows = compare_on(divided, config, configs, seeds, out, processes=processes, device=device, threads=threads)
    show_rows(f"{log.name}, {config.protocol}, test", rows)
    refuse_failures(rows)


def compare_on(
    divided: Split,
    config: FitConfig,
    configs: dict[str, FitConfig],
    seeds: int,
    out: Path,
    *,
    progress: bool = True,
    processes: int = 1,
    device: str | None = None,
    threads: int | None = None,
) -> list[Row]:
    """A row each for the baselines and for `configs`; what `out` already holds is not computed again."""
    open_run(out, divided, variant(config, DEFAULT.mixer), store=True)
    names, left_out = usable(divided.train)
    if progress:
        print("".join(f"{line}\n" for line in left_out), end="", flush=True)
    rows = [Row(name, (baseline(name, divided, config, out),)) for name in names]
    runs = [
        Training(
            system=name,
            config=replace(one, train=replace(one.train, seed=seed)),
            split=divided,
            folder=run_folder(out, name, seed),
            progress=progress and 1 in (processes, seeds * len(configs)),
            device=device,
        )
        for seed in range(seeds)
        for name, one in configs.items()
    ]
    found: dict[Training, Metrics | Failure] = {
        run: metrics for run in runs if (metrics := _read(run.result)) is not None
    }
    missing = [run for run in runs if run not in found]
    for n, (run, result) in enumerate(run_all(missing, processes, threads), 1):
        found[run] = result
        if progress:
            print(f"{n}/{len(missing)}  {run.folder.name}  {_summary(result)}", flush=True)
    for name in configs:
        mine = [found[run] for run in runs if run.system == name]
        done = tuple(one for one in mine if not isinstance(one, Failure))
        rows.append(Row(name, done, tuple(one for one in mine if isinstance(one, Failure))))
    return rows


def run_folder(out: Path, system: str, seed: int) -> Path:
    """Where a run of a comparison lies."""
    return out / f"{system.replace(':', '-').replace('/', '-')}-seed{seed}"


def variant(config: FitConfig, mixer: str) -> FitConfig:
    """The config with another mixer; its seed is 0."""
    return replace(config, mixer=mixer, train=replace(config.train, seed=0))


def baseline(name: str, divided: Split, config: FitConfig, out: Path) -> Metrics:
    """What a simple baseline gets on the same queries."""

    def found() -> Evaluation:
        scorer = BASELINES[name]().fit(divided.train)
        return evaluate(scorer, divided.log, divided.test, cutoffs=config.ranks)

    return once(out / f"{name}.json", found)


def once(path: Path, compute: Callable[[], Evaluation]) -> Metrics:
    """The metrics that a file holds; computed and written if there is none, with the rank of every query beside."""
    before = _read(path)
    if before is not None:
        return before
    found = compute()
    ranks = pl.DataFrame(
        {"user": found.users, "above": found.ranks.above, "tied": found.ranks.tied, "of": found.ranks.candidates}
    )
    write_frame(path.with_suffix(".parquet"), ranks)
    metrics = {metric: found[metric] for metric in found.values}
    write_whole(path, json.dumps(metrics, indent=1).encode())  # last: what is there is whole
    return metrics


def _read(path: Path) -> Metrics | None:
    if not path.exists():
        return None
    try:
        found: Metrics = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} cannot be read ({error}): remove it to compute it again") from None
    return found


def _summary(result: Metrics | Failure) -> str:
    if isinstance(result, Failure):
        return f"failed: {result.reason}"
    return "  ".join(f"{metric} {value:.4f}" for metric, value in list(result.items())[:4])
