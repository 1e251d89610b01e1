"""`prism compare`: many mixers and seeds on one log, in the paper's table; started again, it does what is left."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tyro.conf import OmitArgPrefixes, Positional

from prism.config import at_least
from prism.data.known import load, statistics_table
from prism.data.splits import Split, split
from prism.errors import InputError
from prism.files import write_whole
from prism.recommend.config import FitConfig
from prism.recommend.recommender import Recommender, open_run
from prism.recommend.tables import show
from prism.tasks.baselines import BASELINES
from prism.tasks.evaluation import evaluate

DEFAULT = FitConfig()
Metrics = dict[str, float]


@dataclass(frozen=True)
class Row:
    """One system: the metrics of each of its runs."""

    name: str
    runs: tuple[Metrics, ...]

    def mean(self, metric: str) -> float:
        """Over runs."""
        return statistics.fmean(run[metric] for run in self.runs)

    def spread(self, metric: str) -> float | None:
        """The standard deviation over runs; None for one run."""
        return statistics.stdev(run[metric] for run in self.runs) if len(self.runs) > 1 else None


def compare(
    data: Positional[str],
    out: Path,
    mixers: tuple[str, ...] = ("prism", "gated-deltanet", "sasrec", "hstu"),
    seeds: int = 1,
    config: OmitArgPrefixes[FitConfig] = DEFAULT,
    folder: Path | None = None,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
) -> None:
    """Trains many mixers with many seeds and prints one table, simple baselines beside; run again, it continues.

    Args:
        data: A CSV, TSV, Parquet or JSON-lines file, a pattern of them, or a known data set's name.
        out: Folder of all runs, one each (mixer, seed).
        mixers: Names of `prism list`, with options after a colon: prism prism:steps=0 prism:keys=shared,anchor=none.
        seeds: Runs of each mixer.
        config: What to train and how, the same for all; `mixer` and `seed` are set here.
        folder: Where a known data set's files are; default: $PRISM_DATA or ~/.cache/prism.
        user: Column of users; default: guessed from its name.
        item: Column of items.
        time: Column of times.
    """
    at_least("seeds", seeds, 1)
    configs = {name: variant(config, name) for name in mixers}  # a wrong name is refused before anything is read
    if not configs:
        raise InputError("mixers is empty: give at least one name of `prism list`")
    log = load(data, folder=folder, user=user, item=item, time=time)
    divided = split(log, config.protocol)
    print("\n".join([statistics_table(log), *log.notes, divided.describe()]), flush=True)
    rows = compare_on(divided, config, configs, seeds, out)
    show_rows(f"{log.name}, {config.protocol}, test", rows)


def compare_on(
    divided: Split, config: FitConfig, configs: dict[str, FitConfig], seeds: int, out: Path, *, progress: bool = True
) -> list[Row]:
    """A row each for the baselines and for `configs`; what `out` already holds is not computed again."""
    open_run(out, divided, variant(config, DEFAULT.mixer), store=True)
    rows = []
    for name in BASELINES:
        rows.append(Row(name, (_once(out / f"{name}.json", partial(_baseline, name, divided, config)),)))
    for name, one in configs.items():
        runs = []
        for seed in range(seeds):
            seeded = replace(one, train=replace(one.train, seed=seed))
            run = out / f"{name.replace(':', '-').replace('/', '-')}-seed{seed}"
            runs.append(_once(run / "test.json", partial(_trained, divided, seeded, run, progress)))
        rows.append(Row(name, tuple(runs)))
    return rows


def variant(config: FitConfig, name: str) -> FitConfig:
    """The config for `mixer` or `mixer:field=value,field=value`; its seed is 0."""
    mixer, _, options = name.partition(":")
    chosen = tuple(part for part in options.split(",") if part)
    return replace(config, mixer=mixer, mixer_options=chosen, train=replace(config.train, seed=0))


def mean_ranks(rows: list[Row], metrics: list[str]) -> list[float]:
    """Each row's place, 1 the best, averaged over metrics; rows with equal means share a place."""
    ranks: list[list[float]] = [[] for _ in rows]
    for metric in metrics:
        means = [row.mean(metric) for row in rows]
        for places, mean in zip(ranks, means, strict=True):
            tied = sum(other == mean for other in means)
            places.append(1 + sum(other > mean for other in means) + (tied - 1) / 2)
    return [statistics.fmean(places) for places in ranks]


def show_rows(title: str, rows: list[Row], *, columns: Sequence[str] | None = None) -> None:
    """The paper's table: Hit and NDCG at each cut-off, MRR, AUC (or `columns`), and the mean rank over them."""
    metrics = list(columns or rows[0].runs[0])
    cells = []
    for row, rank in zip(rows, mean_ranks(rows, metrics), strict=True):
        values = []
        for metric in metrics:
            spread = row.spread(metric)
            values.append(f"{row.mean(metric):.4f}" + ("" if spread is None else f" ±{spread:.4f}"))
        cells.append([row.name, *values, f"{rank:.1f}"])
    most = max(len(row.runs) for row in rows)
    note = "mean over events" + (
        f"; mean ± standard deviation of {most} seeds" if most > 1 else "; one seed: no spread"
    )
    show(title, ["", *metrics, "mean rank"], cells, caption=note)


def _once(path: Path, compute: Callable[[], Metrics]) -> Metrics:
    """What a file holds; computed and written if there is none."""
    if path.exists():
        try:
            found: Metrics = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} cannot be read ({error}): remove it to compute it again") from None
        return found
    metrics = compute()
    write_whole(path, json.dumps(metrics, indent=1).encode())
    return metrics


def _baseline(name: str, divided: Split, config: FitConfig) -> Metrics:
    scorer = BASELINES[name]().fit(divided.train)
    found = evaluate(scorer, divided.log, divided.test, cutoffs=config.cutoffs)
    return {metric: found[metric] for metric in found.values}


def _trained(divided: Split, config: FitConfig, run: Path, progress: bool) -> Metrics:
    if progress:
        print(f"{run.name}:", flush=True)
    found = Recommender.fit_split(divided, config, run, progress=progress, store=False).evaluate()
    return {metric: found[metric] for metric in found.values}
