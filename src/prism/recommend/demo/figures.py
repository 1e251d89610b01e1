"""The report's figures: learning curves, Hit@K, performance by length, metrics with intervals."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prism.recommend.demo.charts import Line, Point, line_chart
from prism.recommend.demo.findings import LABELS, Question, group_estimate, hit_curve, length_groups

Journals = Mapping[str, Sequence[Mapping[str, Any]]]


def styles(names: Iterable[str]) -> dict[str, int]:
    """A colour, dash and marker for each system, by its place."""
    return {name: n for n, name in enumerate(names)}


def learning_loss(journals: Journals) -> str:
    """The training loss over epochs."""
    return _learning(journals, "loss", "training loss", from_zero=False)


def learning_metric(journals: Journals, metric: str) -> str:
    """A validation metric over epochs."""
    return _learning(journals, f"valid/{metric}", f"validation {metric.upper()}", from_zero=True)


def _learning(journals: Journals, key: str, label: str, *, from_zero: bool) -> str:
    lines = []
    for style, (name, journal) in enumerate(journals.items()):
        found = [Point(x=float(line["epoch"]), y=float(line[key])) for line in journal if key in line]
        if found:
            lines.append(Line(label=LABELS.get(name, name), style=style, points=found))
    if not lines:
        return ""
    return line_chart(lines, x_label="epoch", y_label=label, from_zero=from_zero)


def hits(question: Question) -> str:
    """Hit@K over K on a logarithmic scale."""
    first = next(iter(question.found.values()))
    longest = min(200, int(first.ranks.candidates.min()))
    lines = [
        Line(
            label=LABELS.get(name, name),
            style=style,
            points=[Point(x=k, y=y, note=f"Hit@{k} = {y:.4f}") for k, y in hit_curve(question.found[name], longest)],
        )
        for name, style in styles(question.found).items()
    ]
    marks = [k for k in (1, 2, 5, 10, 20, 50, 100, 200) if k <= longest]
    shown = [(k, str(k)) for k in dict.fromkeys([*marks, longest])]
    return line_chart(lines, x_label="K", y_label="Hit@K", x_ticks=shown, log_x=True)


def by_length(question: Question, metric: str) -> str:
    """A metric by events before the target; systems stand side by side, so that whiskers do not hide each other."""
    groups = length_groups(next(iter(question.found.values())))
    if not groups:
        return ""
    lines = []
    for name, style in styles(question.found).items():
        points = []
        for n, (group, inside) in enumerate(groups):
            found = group_estimate(question.found[name], inside, metric)
            note = f"{group} events, {int(inside.sum()):,} queries: {found.mean:.4f}"
            x = n + (style - (len(question.found) - 1) / 2) * min(0.07, 0.7 / len(question.found))
            points.append(Point(x=x, y=found.mean, low=found.low, high=found.high, note=note))
        lines.append(Line(label=LABELS.get(name, name), style=style, points=points))
    marks = [(float(n), group) for n, (group, _) in enumerate(groups)]
    return line_chart(lines, x_label="events before the target", y_label=metric.upper(), x_ticks=marks)


def interval_rows(question: Question, metric: str) -> list[tuple[str, int, Point]]:
    """One row per system with its mean and interval, the best first."""
    style = styles(question.found)
    order = sorted(question.found, key=lambda name: -question.found[name][metric])
    rows = []
    for name in order:
        found = question.found[name].means["event"][metric]
        note = f"{found.mean:.4f} [{found.low:.4f}, {found.high:.4f}]"
        rows.append(
            (LABELS.get(name, name), style[name], Point(x=0, y=found.mean, low=found.low, high=found.high, note=note))
        )
    return rows
