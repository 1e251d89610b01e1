"""Charts as SVG inside a page: matplotlib draws, the page's style colours, so that they follow light and dark."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from prism.display.figures import pyplot
from prism.recommend.demo.style import MARKERS, SYSTEM_COLOURS, dashes

WIDTH, HEIGHT = 520, 300
# Colours that matplotlib writes and no page has: each stands for one of the page's own.
INK, QUIET, RULE, CARD = "#000001", "#000002", "#000003", "#000004"
VARIABLES = {INK: "ink", QUIET: "quiet", RULE: "rule", CARD: "card"}
VARIABLES |= {f"#0000{16 + n:02x}": f"s{n}" for n in range(SYSTEM_COLOURS)}
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "prism",
    "font.size": 12,
    "axes.edgecolor": RULE,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": RULE,
    "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET,
    "text.color": INK,
    "grid.color": RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.left": False,
    "axes.axisbelow": True,
}


class Point(NamedTuple):
    """A value at a place, with the ends of its interval where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    """Shown when the mouse rests on it."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One system's points; `style` numbers its colour, dash and marker."""

    label: str
    style: int
    points: Sequence[Point]


class Chart:
    """A figure of one axes whose points can have notes."""

    def __init__(self, title: str, width: int, height: int, margins: dict[str, float]):
        self.title, self.notes = title, list[str]()
        with pyplot().rc_context(SETTINGS):
            self.figure = pyplot().figure(figsize=(width / 72, height / 72))  # SVG's unit is a 72nd of an inch
            self.axes: Any = self.figure.add_subplot()
        edges = {"left": margins["left"] / width, "right": 1 - margins["right"] / width}
        self.figure.subplots_adjust(**edges, top=1 - margins["top"] / height, bottom=margins["bottom"] / height)

    def mark(self, x: float, y: float, style: int, note: str) -> None:
        """A marker: systems differ in shape too, not by colour alone."""
        marker, size = MARKERS[style % len(MARKERS)]
        (drawn,) = self.axes.plot(
            [x], [y], linestyle="none", marker=marker, markersize=size, color=colour(style), markeredgecolor=CARD,
            clip_on=False, zorder=3,
        )  # fmt: skip
        if note:
            drawn.set_gid(f"note-{len(self.notes)}")
            self.notes.append(note)

    def whisker(self, x: tuple[float, float], y: tuple[float, float], style: int, width: float, alpha: float) -> None:
        self.axes.plot(x, y, color=colour(style), linewidth=width, alpha=alpha, solid_capstyle="round")

    def svg(self) -> str:
        """As an element of a page: no ids that two charts would share, no style of its own."""
        buffer = io.StringIO()
        with pyplot().rc_context(SETTINGS):
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            self.figure.savefig(buffer, format="svg", metadata=nothing)
        pyplot().close(self.figure)
        text = buffer.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        for n, note in enumerate(self.notes):
            text = text.replace(f'<g id="note-{n}">', f"<g><title>{escape(note)}</title>", 1)
        text = re.sub(r' id="[A-Za-z0-9]+_\d+"| xmlns(:\w+)?="[^"]*"', "", text)
        text = re.sub("|".join(VARIABLES), lambda found: f"var(--{VARIABLES[found[0]]})", text)
        return text.replace("<svg", f'<svg class="chart" role="img" aria-label="{escape(self.title)}"', 1)


def colour(style: int) -> str:
    """What stands for a system's colour."""
    return f"#0000{16 + style % SYSTEM_COLOURS:02x}"


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    x_ticks: Sequence[tuple[float, str]] = (),
    log_x: bool = False,
    from_zero: bool = True,
) -> str:
    """Lines with markers and, where points have intervals, whiskers."""
    chart = Chart(f"{y_label} by {x_label}", WIDTH, HEIGHT, {"left": 62, "right": 14, "top": 12, "bottom": 46})
    axes = chart.axes
    if log_x:
        axes.set_xscale("log")
    # the first line is ours and is drawn last, on top
    for line in reversed(lines):
        x, y = [p.x for p in line.points], [p.y for p in line.points]
        axes.plot(x, y, color=colour(line.style), linewidth=2.2, linestyle=dashes(line.style))
        for p in line.points:
            if p.low is not None and p.high is not None:
                chart.whisker((p.x, p.x), (p.low, p.high), line.style, 1.4, 0.6)
        if len(line.points) <= 40:
            for p in line.points:
                chart.mark(p.x, p.y, line.style, f"{line.label}: {p.note or f'{p.y:.4f}'}")
    if x_ticks:
        axes.set_xticks([x for x, _ in x_ticks], [label for _, label in x_ticks])
    else:
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", nbins=5)
    axes.locator_params(axis="y", nbins=5)
    axes.minorticks_off()
    axes.set_xlabel(x_label, labelpad=7)
    axes.set_ylabel(y_label)
    if from_zero:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    return chart.svg()


def interval_chart(rows: Sequence[tuple[str, int, Point]], *, x_label: str) -> str:
    """One row per system: its value and interval on a common scale; `y` of a point is the value."""
    chart = Chart(x_label, WIDTH, 30 * len(rows) + 54, {"left": 118, "right": 56, "top": 6, "bottom": 46})
    axes = chart.axes
    for n, (label, style, point) in enumerate(rows):
        end = point.y
        if point.low is not None and point.high is not None:
            chart.whisker((point.low, point.high), (n, n), style, 5, 0.35)
            end = point.high
        chart.mark(point.y, n, style, f"{label}: {point.note or f'{point.y:.4f}'}")
        axes.annotate(
            f"{point.y:.3f}", (end, n), (9, 0), textcoords="offset points", va="center", fontsize=13, color=INK
        )
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=13)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(x_label, labelpad=8)
    axes.spines.bottom.set_visible(False)
    axes.tick_params(axis="x", bottom=False)
    axes.grid(axis="x")
    return chart.svg()


def sample(style: int) -> str:
    """A short line with its marker, for a legend."""
    chart = Chart("", 34, 16, dict.fromkeys(("left", "right", "top", "bottom"), 1.0))
    chart.axes.plot([0, 2], [0, 0], color=colour(style), linewidth=2.2, linestyle=dashes(style))
    chart.mark(1, 0, style, "")
    chart.axes.axis("off")
    return chart.svg()
