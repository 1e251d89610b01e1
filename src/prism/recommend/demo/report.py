"""The report of a comparison: one HTML file that needs nothing else, with the numbers that were measured."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from prism import __version__
from prism.errors import InputError
from prism.files import write_whole
from prism.recommend.config import FitConfig
from prism.recommend.data.known import statistics
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Split
from prism.recommend.demo.charts import interval_chart, legend
from prism.recommend.demo.figures import (
    by_length,
    hits,
    interval_rows,
    learning_loss,
    learning_metric,
    styles,
)
from prism.recommend.demo.findings import LABELS, Customer, Question, verdict
from prism.recommend.demo.style import style_sheet
from prism.recommend.evaluation.intervals import Estimate

CREDIT = (
    "Data: Chen, D. (2015), Online Retail, UCI Machine Learning Repository, doi:10.24432/C5BW33, CC BY 4.0; "
    "cancelled invoices and rows without a customer were removed."
)


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
    """The page as text."""
    sheet = style_sheet(max((len(question.found) for question in report.questions), default=len(report.models)))
    sections = [_head(report), _metrics(report), _learning(report), _hits(report), _lengths(report)]
    sections += [_customers(report), _run(report), _foot(report)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>What comes next? {escape(report.log.name)}</title><style>{sheet}</style></head>\n"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _head(report: Report) -> str:
    counts = statistics(report.log)
    facts = {
        "customers": f"{counts.users:,}",
        "products": f"{counts.items:,}",
        "purchases": f"{counts.events:,}",
        "test queries": f"{len(report.split.test):,}",
        "seconds in all": f"{sum(report.seconds.values()):,.0f}",
    }
    cells = "".join(f'<div class="fact"><b>{value}</b><span>{name}</span></div>' for name, value in facts.items())
    said = "".join(
        f"<p><b>{escape(question.title)}.</b> {escape(verdict(question, report.metric).sentence())}</p>"
        for question in report.questions
    )
    models = _list([LABELS[model.name] for model in report.models])
    return (
        f"<header><h1>What comes next?</h1><p class=lead>{models} on {escape(report.log.name)}, "
        f"beside simple baselines that a model has to beat.</p></header>"
        f'<div class="facts">{cells}</div><div class="finding">{said}'
        f'<p class="quiet">{report.metric.upper()}, mean over queries, with 95 % intervals from resampled customers; '
        "differences are taken query by query. "
        "One run of each model with a short budget: what to expect of a minute of training, not of the "
        "architectures.</p></div>"
    )


def _metrics(report: Report) -> str:
    parts = ["<section><h2>Metrics</h2>"]
    parts.append(
        "<p>Two cut-offs in time divide the events into training, validation and test. All candidates are ranked; ties "
        "count by their expected rank. The best epoch of each model was chosen on validation queries. The settings "
        "that ship with the demo were picked while its authors could see test results on this data, so read small "
        "differences to the simple baselines with care; the models are told when the next event is asked for, the "
        f"baselines are not.</p><p class=quiet>{escape(report.split.describe())}.</p>"
    )
    for question in report.questions:
        charts = "".join(
            f'<div class="card">{interval_chart(interval_rows(question, metric), x_label=_title(metric))}</div>'
            for metric in (report.metric, f"hit@{report.config.cutoffs[0]}")
        )
        parts.append(
            f"<h3>{escape(question.title)}</h3><p class=quiet>{_code(question.about)} {_cold(question)}</p>"
            f'<div class="card scroll">{_table(question)}</div><div class="grid2 pair">{charts}</div>'
        )
    return "".join(parts) + "</section>"


def _table(question: Question) -> str:
    means = {name: found.means["event"] for name, found in question.found.items()}
    metrics = list(next(iter(means.values())))
    best = {metric: max(one[metric].mean for one in means.values()) for metric in metrics}
    head = "".join(f"<th>{_title(metric)}</th>" for metric in metrics)
    rows = []
    for name, one in means.items():
        cells = "".join(_cell(one[metric], one[metric].mean == best[metric]) for metric in metrics)
        rows.append(f"<tr><td>{escape(LABELS.get(name, name))}</td>{cells}</tr>")
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cell(estimate: Estimate, best: bool) -> str:
    mark = ' class="best"' if best else ""
    return f"<td{mark}>{estimate.mean:.4f}<small>{estimate.low:.3f} – {estimate.high:.3f}</small></td>"


def _cold(question: Question) -> str:
    cold = next(iter(question.found.values())).cold
    return f"{cold:,} events of items that nobody had bought before the cut-off are not asked about." if cold else ""


def _learning(report: Report) -> str:
    names = [(LABELS[model.name], n) for n, model in enumerate(report.models)]
    journals = {model.name: model.journal for model in report.models}
    charts = (learning_loss(journals), learning_metric(journals, report.metric))
    cards = "".join(f'<div class="card">{chart}</div>' for chart in charts if chart)
    return (
        "<section><h2>Learning curves</h2><p class=quiet>First the mean loss of the training events (exact softmax "
        f"over all items, in nats), then {_title(report.metric)} of validation queries after each epoch.</p>"
        f'{legend(names)}<div class="grid2">{cards}</div></section>'
    )


def _hits(report: Report) -> str:
    cards = "".join(
        f'<div class="card"><h3>{escape(question.title)}</h3>{hits(question)}</div>' for question in report.questions
    )
    return (
        "<section><h2>Hit@K</h2><p class=quiet>The share of queries whose item is among the first K "
        f'recommendations.</p>{_legend(report)}<div class="grid2">{cards}</div></section>'
    )


def _lengths(report: Report) -> str:
    cards = "".join(
        f'<div class="card"><h3>{escape(question.title)}</h3>{chart}</div>'
        for question in report.questions
        if (chart := by_length(question, report.metric))
    )
    return (
        f"<section><h2>By history length</h2><p class=quiet>{_title(report.metric)} by the number of events before "
        "the target, with 95 % intervals from resampled customers; groups of fewer than 20 queries are left out.</p>"
        f'{_legend(report)}<div class="grid2">{cards}</div></section>'
    )


def _legend(report: Report) -> str:
    found = report.questions[0].found
    return legend([(LABELS.get(name, name), style) for name, style in styles(found).items()])


def _customers(report: Report) -> str:
    cards = "".join(_customer(customer) for customer in report.customers)
    return (
        "<section><h2>Three customers</h2><p>PRISM's ten recommendations at the moment a customer comes back after "
        "the cut-off, from everything bought until then. The three stand at the quartiles of history length: nobody "
        "picked the ones that look good.</p>"
        f'<div class="grid3">{cards}</div></section>'
    )


def _customer(customer: Customer) -> str:
    recent = "".join(f"<li>{escape(name)} <time>{day}</time></li>" for day, name in customer.recent)
    suggested = "".join(
        f"<li>{escape(one.name)}"
        + ('<span class="tag hit">✓ bought</span>' if one.bought_later else "")
        + ('<span class="tag again">had it</span>' if one.bought_before else "")
        + "</li>"
        for one in customer.suggestions
    )
    count = sum(one.bought_later for one in customer.suggestions)
    return (
        f'<div class="card goods"><h3>Customer {escape(str(customer.user))}</h3>'
        f"<p class=quiet>{customer.events:,} purchases until {customer.returned}. The latest:</p><ul>{recent}</ul>"
        f"<p class=quiet>Recommended on {customer.returned}; {count} of {len(customer.suggestions)} are among the "
        f"{customer.later:,} different items bought from then on:</p><ol>{suggested}</ol></div>"
    )


def _run(report: Report) -> str:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    rows = {"command": f"<code>{escape(report.command)}</code>", "made": f"{made}, prism {__version__}"}
    rows["machine"] = escape(", ".join(f"{name} {value}" for name, value in report.machine.items() if value))
    rows |= {name: f"{seconds:,.0f} s" for name, seconds in report.seconds.items()}
    for model in report.models:
        seen = "the whole history" if model.context is None else f"the last {model.context} events"
        rows[LABELS[model.name]] = f"{model.parameters:,} parameters, sees {seen}"
    body = "".join(f"<tr><td>{escape(name)}</td><td>{value}</td></tr>" for name, value in rows.items())
    config = escape(json.dumps(json.loads(report.config.to_json()), indent=1))
    return (
        f'<section><h2>What was run</h2><div class="card"><table class="run"><tbody>{body}</tbody></table></div>'
        f"<details><summary class=quiet>the whole configuration (the mixer differs from model to model)</summary>"
        f"<pre><code>{config}</code></pre></details></section>"
    )


def _foot(report: Report) -> str:
    credit = f"<p class=quiet>{CREDIT}</p>" if report.log.name == "online-retail" else ""
    commands = (
        "prism fit events.csv --out runs/mine       # columns user, item, time\n"
        "prism evaluate runs/mine\n"
        "prism recommend runs/mine --all recommendations.parquet"
    )
    return f"<footer><h3>On a log of your own</h3><pre><code>{commands}</code></pre>{credit}</footer>"


def _title(metric: str) -> str:
    name, at, cutoff = metric.partition("@")
    return (name.capitalize() if name == "hit" else name.upper()) + at + cutoff


def _list(words: Sequence[str]) -> str:
    return escape(" and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words))


def _code(text: str) -> str:
    return re.sub(r"`(.+?)`", r"<code>\1</code>", escape(text))
