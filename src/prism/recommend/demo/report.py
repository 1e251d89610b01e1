"""The report of a comparison: one HTML file that needs nothing else, with the numbers that were measured."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from prism import __version__
from prism.display.html import render_template
from prism.errors import InputError
from prism.files import write_whole
from prism.recommend.config import FitConfig
from prism.recommend.data.known import statistics
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Split
from prism.recommend.demo.charts import interval_chart, sample
from prism.recommend.demo.figures import by_length, hits, interval_rows, learning_loss, learning_metric
from prism.recommend.demo.findings import LABELS, Customer, Question, leads_sentence, verdict
from prism.recommend.demo.style import DARK, LIGHT


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A model of the comparison."""

    name: str
    parameters: int
    context: int | None
    """Events of a history that it sees; None: all."""
    seconds: float
    journal: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """All that the page shows."""

    log: Log
    split: Split
    questions: Sequence[Question]
    metric: str
    models: Sequence[TrainedModel]
    customers: Sequence[Customer]
    command: str
    config: FitConfig
    machine: Mapping[str, Any]
    seconds: Mapping[str, float]


def write_report(path: Path, report: Report) -> Path:
    """Writes the page; it is there whole or not at all."""
    try:
        write_whole(path, render(report).encode())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    return path


def render(report: Report) -> str:
    from markupsafe import Markup

    journals = {model.name: model.journal for model in report.models}
    learning = [learning_loss(journals), learning_metric(journals, report.metric)]
    return render_template(
        "prism.recommend.demo",
        "report.html",
        report=report,
        metric=_title(report.metric),
        models=_listed([LABELS[model.name] for model in report.models]),
        facts=_facts(report),
        questions=[_asked(question, report) for question in report.questions],
        learning=[Markup(chart) for chart in learning if chart],
        trained=_legend([model.name for model in report.models]),
        systems=_legend(list(report.questions[0].found)),
        run=_run(report),
        light=LIGHT,
        dark=DARK,
    )


def _facts(report: Report) -> dict[str, str]:
    counts = statistics(report.log)
    return {
        "customers": f"{counts.users:,}",
        "products": f"{counts.items:,}",
        "purchases": f"{counts.events:,}",
        "test queries": f"{len(report.split.test):,}",
        "seconds in all": f"{sum(report.seconds.values()):,.0f}",
    }


def _asked(question: Question, report: Report) -> dict[str, Any]:
    """What the page shows of one question; `rows` has (label, [(estimate, whether it is the best)])."""
    from markupsafe import Markup

    means = {name: found.means["event"] for name, found in question.found.items()}
    metrics = list(next(iter(means.values())))
    best = {metric: max(one[metric].mean for one in means.values()) for metric in metrics}
    return {
        "title": question.title,
        "about": Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", escape(question.about))),
        "verdict": verdict(question, report.metric).sentence(),
        "leads": leads_sentence(question, report.metric) if "prism" in question.found else "",
        "cold": next(iter(question.found.values())).cold,
        "metrics": [_title(metric) for metric in metrics],
        "rows": [
            (LABELS.get(name, name), [(one[metric], one[metric].mean == best[metric]) for metric in metrics])
            for name, one in means.items()
        ],
        "intervals": [
            Markup(interval_chart(interval_rows(question, metric), x_label=_title(metric)))
            for metric in (report.metric, f"hit@{report.config.ranks[0]}")
        ],
        "hits": Markup(hits(question)),
        "lengths": Markup(by_length(question, report.metric)),
    }


def _legend(names: Sequence[str]) -> list[tuple[str, str]]:
    """(label, sample of its line) for each system, by its place."""
    from markupsafe import Markup

    return [(LABELS.get(name, name), Markup(sample(style))) for style, name in enumerate(names)]


def _run(report: Report) -> dict[str, str]:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    rows = {
        "made": f"{made}, prism {__version__}",
        "machine": ", ".join(f"{name} {value}" for name, value in report.machine.items() if value),
    }
    rows |= {name: f"{seconds:,.0f} s" for name, seconds in report.seconds.items()}
    for model in report.models:
        seen = "the whole history" if model.context is None else f"the last {model.context} events"
        rows[LABELS[model.name]] = f"{model.parameters:,} parameters, sees {seen}"
    return rows


def _title(metric: str) -> str:
    name, at, cutoff = metric.partition("@")
    return (name.capitalize() if name == "hit" else name.upper()) + at + cutoff


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
