"""Rows of a comparison: what each system's runs got, their mean, spread and rank, as the paper's table."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prism.display.tables import show
from prism.errors import InputError

Metrics = dict[str, float]


@dataclass(frozen=True)
class Failure:
    """A run that could not be finished."""

    run: str
    reason: str


@dataclass(frozen=True)
class Row:
    """One system: the metrics of each of its runs, and the runs that failed."""

    name: str
    runs: tuple[Metrics, ...]
    failures: tuple[Failure, ...] = ()

    def mean(self, metric: str) -> float:
        """A metric's mean over runs."""
        return statistics.fmean(run[metric] for run in self.runs)

    def spread(self, metric: str) -> float | None:
        """The standard deviation over runs; None for one run."""
        return statistics.stdev(run[metric] for run in self.runs) if len(self.runs) > 1 else None


def mean_ranks(rows: Sequence[Row], metrics: Sequence[str]) -> list[float]:
    """Each row's place, 1 the best, averaged over metrics; rows with equal means share a place."""
    ranks: list[list[float]] = [[] for _ in rows]
    for metric in metrics:
        means = [row.mean(metric) for row in rows]
        for places, mean in zip(ranks, means, strict=True):
            tied = sum(other == mean for other in means)
            places.append(1 + sum(other > mean for other in means) + (tied - 1) / 2)
    return [statistics.fmean(places) for places in ranks]


def show_rows(title: str, rows: Sequence[Row], *, columns: Sequence[str] | None = None) -> None:
    """The paper's table: Hit and NDCG at each cut-off, MRR, AUC (or `columns`), and the mean rank over them."""
    finished = [row for row in rows if row.runs]
    metrics = list(columns or finished[0].runs[0])
    ranks = dict(zip([row.name for row in finished], mean_ranks(finished, metrics), strict=True))
    cells = []
    for row in rows:
        values = [_cell(row, metric) for metric in metrics]
        cells.append([row.name, *values, f"{ranks[row.name]:.1f}" if row.runs else "–"])
    most = max(len(row.runs) for row in finished)
    note = "mean over events" + (
        f"; mean ± standard deviation of {most} seeds" if most > 1 else "; one seed: no spread"
    )
    show(title, ["", *metrics, "mean rank"], cells, caption="\n".join([note, *failures(rows)]))


def failures(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each run that failed."""
    return (f"{one.run} failed: {one.reason}" for row in rows for one in row.failures)


def refuse_failures(rows: Sequence[Row]) -> None:
    """After the table is shown: the user is to know that runs are missing from it."""
    failed = [one for row in rows for one in row.failures]
    if failed:
        names = ", ".join(one.run for one in failed)
        what = f"{len(failed)} run{'s' if len(failed) > 1 else ''} failed ({names})"
        raise InputError(f"{what}, the others are done; the reasons are below the table")


def _cell(row: Row, metric: str) -> str:
    if not row.runs:
        return "failed"
    spread = row.spread(metric)
    return f"{row.mean(metric):.4f}" + ("" if spread is None else f" ±{spread:.4f}")
