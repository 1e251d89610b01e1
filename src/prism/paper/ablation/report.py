"""What each part of PRISM is worth: means with intervals over users and spread over seeds, paired differences."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from prism.display.tables import Cell, show
from prism.errors import InputError
from prism.printed import COMPONENT_ABLATION
from prism.recommend.evaluation.intervals import estimates
from prism.recommend.evaluation.metrics import Floats, Ints, Ranks, metric_values
from prism.recommend.evaluation.rows import Row, failures


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A mean over seeds and test events, the ends of its 95 % interval over users, and what each seed got."""

    mean: float
    low: float
    high: float
    seeds: tuple[float, ...]

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None for one."""
        return statistics.stdev(self.seeds) if len(self.seeds) > 1 else None

    @property
    def clear(self) -> bool:
        """Of a difference: whether the interval excludes 0, and all of several seeds lie on one side of it."""
        one_side = all(seed > 0 for seed in self.seeds) or all(seed < 0 for seed in self.seeds)
        return len(self.seeds) > 1 and one_side and not self.low <= 0 <= self.high


@dataclass(frozen=True, kw_only=True)
class Part:
    """A row: a variant, or a simple baseline."""

    name: str
    parameters: int | None
    """None for a baseline."""
    values: dict[str, Measured]
    differences: dict[str, Measured]
    """To full PRISM on the same queries; empty for itself and for baselines."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """The metrics of every test query, for each seed."""

    users: Ints
    seeds: Mapping[int, dict[str, Floats]]

    @classmethod
    def read(cls, results: Mapping[int, Path], cutoffs: Sequence[int]) -> "Answers":
        """From the results that a comparison left, by seed; at least one."""
        seeds, users = {}, None
        for seed, path in results.items():
            try:
                frame = pl.read_parquet(path.with_suffix(".parquet"))
            except (OSError, pl.exceptions.PolarsError):
                raise InputError(f"{path} has no ranks of its queries beside it: remove it to run it again") from None
            above, tied, of = (frame[name].to_numpy() for name in ("above", "tied", "of"))
            seeds[seed] = metric_values(Ranks(above=above, tied=tied, candidates=of), cutoffs)
            users = frame["user"].to_numpy()
        if users is None:
            raise ValueError("no results to read")
        return cls(users=users, seeds=seeds)

    def measured(self) -> dict[str, Measured]:
        """Every metric with its interval."""
        return _measured(_mean(self.seeds), self.seeds, self.users)

    def minus(self, other: "Answers") -> dict[str, Measured]:
        """Every metric's difference, query by query: what makes a query hard for both does not widen the interval."""
        both = [seed for seed in self.seeds if seed in other.seeds]
        by_seed = {seed: _less(self.seeds[seed], other.seeds[seed]) for seed in both}
        return _measured(_less(_mean(self.seeds), _mean(other.seeds)), by_seed, self.users)


def _mean(seeds: Mapping[int, dict[str, Floats]]) -> dict[str, Floats]:
    first = next(iter(seeds.values()))
    return {metric: np.mean([values[metric] for values in seeds.values()], axis=0) for metric in first}


def _less(a: dict[str, Floats], b: dict[str, Floats]) -> dict[str, Floats]:
    return {metric: a[metric] - b[metric] for metric in a}


def _measured(mean: dict[str, Floats], seeds: Mapping[int, dict[str, Floats]], users: Ints) -> dict[str, Measured]:
    found = estimates(mean, users)["event"]
    return {
        metric: Measured(
            mean=one.mean,
            low=one.low,
            high=one.high,
            seeds=tuple(float(values[metric].mean()) for values in seeds.values()),
        )
        for metric, one in found.items()
    }


def show_parts(title: str, parts: Sequence[Part], rows: Sequence[Row], cutoffs: Sequence[int]) -> None:
    """Two tables: what every variant got, and what it lost against full PRISM; the paper's figures below ours."""
    first, *others = cutoffs
    metrics = [*(f"hit@{k}" for k in others), "auc", f"hit@{first}", f"ndcg@{first}"]
    cells: list[list[Cell]] = []
    for part in parts:
        size = "" if part.parameters is None else f"{part.parameters:,}"
        cells.append(
            [
                part.name,
                size,
                *(_cell(part.values[m], COMPONENT_ABLATION.get(part.name, {}).get(m), "") for m in metrics),
            ]
        )
    how = "mean over events and seeds ± standard deviation over seeds; below, the 95 % interval over users of that mean"
    note = f"{how}; paper: as printed, on Amazon Electronics"
    show(title, ["", "parameters", *metrics], cells, caption="\n".join([note, *failures(rows)]))
    lost = [part for part in parts if part.differences]
    if not lost:
        return
    cells = [
        [part.name, *(_cell(part.differences[m], _paper_loss(part.name, m), "+") for m in metrics)] for part in lost
    ]
    note = "same queries, interval by resampled users; * where it excludes 0 and every seed says the same"
    show(f"{title}: difference to full PRISM", ["", *metrics], cells, caption=note)


def _paper_loss(name: str, metric: str) -> float | None:
    printed = COMPONENT_ABLATION[name].get(metric)
    return None if printed is None else printed - COMPONENT_ABLATION["full"][metric]


def _cell(one: Measured, paper: float | None, sign: str) -> tuple[str, ...]:
    spread = "" if one.spread is None else f" ±{one.spread:.4f}"
    mark = "*" if sign and one.clear else ""
    lines = [f"{one.mean:{sign}.4f}{spread}{mark}", f"{one.low:{sign}.4f} … {one.high:{sign}.4f}"]
    if paper is not None:
        lines.append(f"paper {paper:{sign}.4f}")
    return tuple(lines)
