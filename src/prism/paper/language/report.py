"""What the language study leaves behind: the tables, the paper's figures beside ours, and the learning curves."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from prism.config import from_fields
from prism.display.figures import COLOURS, pyplot, save_figure
from prism.display.tables import Table, as_text, show_all, table
from prism.files import write_whole
from prism.printed import LANGUAGE_ABLATION, PARAMETERS, PERPLEXITY, SCORES
from prism.recommend.evaluation.rows import Row


@dataclass(frozen=True, kw_only=True)
class LanguageRun:
    """What one model of one seed came to."""

    parameters: int
    cpu_seconds: float
    """Of one core, training and measuring; since it was last continued."""
    curve: tuple[tuple[int, float], ...]
    """(tokens trained on, validation perplexity)."""
    metrics: dict[str, float]
    """Names of `HEADINGS`, as far as there are texts and tasks for them."""
    diverged: str = ""
    """Why training came to no end, if it did not; the perplexities are infinite then."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "LanguageRun":
        curve = tuple((int(tokens), float(value)) for tokens, value in values["curve"])
        return from_fields(cls, values | {"curve": curve}, where="the result")


# (row, seed)
Runs = Mapping[tuple[str, int], LanguageRun]

HEADINGS = {
    "valid": "valid PPL↓",
    "test": "test PPL↓",
    "test_bits": "test bits/byte↓",
    "other": "other text PPL↓",
    "other_bits": "other bits/byte↓",
    "lambada": "LAMBADA PPL↓",
    "accuracy": "mean acc %↑",
}
# Row that the others are compared with; both names are of the same runs.
FULL = ("prism", "full")


def paper_figure(table: str, name: str, metric: str) -> float | None:
    """What the paper prints in this place of its table, if it does. Its other text is WikiText."""
    if table == "language" and name not in SCORES:
        return None
    if table == "language":
        (wiki, lambada, *_), accuracy = SCORES[name]
        valid, test = PERPLEXITY[name]
        printed = {"valid": valid, "test": test, "other": wiki, "lambada": lambada, "accuracy": accuracy}
    else:
        printed = dict(zip(("other", "lambada", "accuracy"), LANGUAGE_ABLATION[name], strict=True))
    return printed.get(metric)


def rows_of(runs: Runs) -> list[Row]:
    """One row per model, in order."""
    names = dict.fromkeys(name for name, _ in runs)
    return [Row(name, tuple(run.metrics for (n, _), run in runs.items() if n == name)) for name in names]


def differences(runs: Runs) -> list[Row]:
    """Each row minus PRISM, seed by seed: the same order of data, so that the spread is the difference's own."""
    full = {seed: run.metrics for (name, seed), run in runs.items() if name in FULL}
    names = dict.fromkeys(name for name, _ in runs if name not in FULL)
    return [
        Row(
            name,
            tuple(
                {metric: value - full[seed][metric] for metric, value in run.metrics.items() if metric in full[seed]}
                for (n, seed), run in runs.items()
                if n == name
            ),
        )
        for name in names
        if full
    ]


def _value(row: Row, metric: str, sign: str = "") -> str:
    digits = 4 if metric.endswith("bits") else 1 if metric == "accuracy" else 2
    mean, spread = row.mean(metric), row.spread(metric)
    # a small model is so far from LAMBADA that its perplexity has nine digits
    form = f".{digits}f" if max(abs(mean), spread or 0) < 1e5 else ".2g"
    return f"{mean:{sign}{form}}" + ("" if spread is None else f" ± {spread:{form}}")


def main_table(name: str, runs: Runs) -> Table:
    """Ours, the paper's in brackets."""
    rows = rows_of(runs)
    metrics = _measured(rows)
    found = []
    for row in rows:
        parameters = f"{runs[row.name, 0].parameters / 1e6:.3f}M"
        if name == "language" and row.name in PARAMETERS:
            parameters += f" [{PARAMETERS[row.name]:.2f}M]"
        cells = []
        for metric in metrics:
            printed = paper_figure(name, row.name, metric)
            cells.append(_value(row, metric) + ("" if printed is None else f" [{printed:.{_places(metric)}f}]"))
        found.append([row.name, parameters, *cells])
    return table(["model", "parameters", *(HEADINGS[metric] for metric in metrics)], found)


def _measured(rows: list[Row]) -> list[str]:
    """What every run has; one that diverged has no accuracies."""
    return [metric for metric in HEADINGS if all(metric in run for row in rows for run in row.runs)]


def _places(metric: str) -> int:
    return 1 if metric == "accuracy" else 2


def difference_table(name: str, runs: Runs) -> Table | None:
    """Each model minus PRISM, the paper's difference in brackets; nothing where PRISM is not among them."""
    rows = differences(runs)
    if not rows:
        return None
    full = next(one for one, _ in runs if one in FULL)
    metrics = _measured(rows)
    found = []
    for row in rows:
        cells = []
        for metric in metrics:
            here, there = (paper_figure(name, one, metric) for one in (row.name, full))
            paper = "" if here is None or there is None else f" [{here - there:+.{_places(metric)}f}]"
            cells.append(_value(row, metric, "+") + paper)
        found.append([row.name, *cells])
    return table([f"minus {full}", *(HEADINGS[metric] for metric in metrics)], found)


def notes(runs: Runs, about: str) -> str:
    """What the tables are of, in sentences."""
    counts = [run.parameters for run in runs.values()]
    apart = 100 * (max(counts) / min(counts) - 1)
    seeds = len({seed for _, seed in runs})
    spread = f"mean ± standard deviation of {seeds} seeds" if seeds > 1 else "one seed: no spread"
    return (
        f"{about}. Parameters at most {apart:.1f} % apart; {spread}; differences are taken seed by seed. "
        "In brackets what the paper prints for 130M parameters and 2B tokens of another text: only the order of the "
        "models can be compared. Its accuracies are of nine tasks, ours of those that there is data for."
    )


def write_report(name: str, runs: Runs, out: Path, about: str) -> None:
    """Prints both tables and keeps them with the learning curves as NAME.txt and NAME.png."""
    parts: list[Table | str] = [main_table(name, runs)]
    if (second := difference_table(name, runs)) is not None:
        parts.append(second)
    parts.append(notes(runs, about))
    show_all(*parts)
    write_whole(out / f"{name}.txt", as_text(*parts).encode())
    write_curves(out / f"{name}.png", runs)
    print(f"wrote {out}/{name}.txt and {out}/{name}.png")


def write_curves(path: Path, runs: Runs) -> None:
    """Validation perplexity over tokens, the mean of the seeds, their range shaded."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(7.5, 4.6))
    for n, name in enumerate(dict.fromkeys(name for name, _ in runs)):
        curves = [run.curve for (other, _), run in runs.items() if other == name and not run.diverged]
        tokens = [point[0] / 1e6 for point in curves[0]] if curves else []
        values = [[curve[place][1] for curve in curves] for place in range(len(tokens))]
        colour = COLOURS[n % len(COLOURS)]
        axis.plot(tokens, [fmean(v) for v in values], "o-", label=name, color=colour, linewidth=1.4, markersize=3)
        axis.fill_between(tokens, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.15)
    axis.set(xlabel="millions of tokens", ylabel="validation perplexity", yscale="log")
    for ticks in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        ticks("{x:.0f}")
    axis.grid(alpha=0.3, which="both")
    axis.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    save_figure(path, figure)
