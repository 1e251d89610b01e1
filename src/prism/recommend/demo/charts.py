"""Charts as inline SVG: colours and text come from the page's style, so that they follow light and dark."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 46
# Markers as polygons around (0, 0); none: a circle.
CORNERS: tuple[tuple[tuple[float, float], ...], ...] = (
    (),
    ((-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)),
    ((0, -5), (5, 0), (0, 5), (-5, 0)),
    ((0, -4.8), (4.6, 3.6), (-4.6, 3.6)),
    ((0, 4.8), (4.6, -3.6), (-4.6, -3.6)),
    ((-1.6, -5), (1.6, -5), (1.6, -1.6), (5, -1.6), (5, 1.6), (1.6, 1.6), (1.6, 5), (-1.6, 5), (-1.6, 1.6),
     (-5, 1.6), (-5, -1.6), (-1.6, -1.6)),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Point:
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


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    span = max(high - low, 1e-9)
    power = 10 ** floor(log10(span / about))
    step = next((power * m for m in (1, 2, 5) if power * m * about >= span), power * 10)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, max(last, first + 1) + 1)]


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    x_ticks: Sequence[tuple[float, str]],
    log_x: bool = False,
    from_zero: bool = True,
) -> str:
    """Lines with markers and, where points have intervals, whiskers."""
    values = [v for line in lines for p in line.points for v in (p.y, p.low, p.high) if v is not None]
    marks = ticks(0.0 if from_zero else min(values), max(values))
    left, right = (_scale(x, log_x) for x in (x_ticks[0][0], x_ticks[-1][0]))

    def across(x: float) -> float:
        return LEFT + (_scale(x, log_x) - left) / max(right - left, 1e-9) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (y - marks[0]) / (marks[-1] - marks[0]) * (HEIGHT - TOP - BOTTOM)

    parts = [_horizontal(up(y), _number(y, marks)) for y in marks]
    parts += [_text(across(x), HEIGHT - BOTTOM + 18, label) for x, label in x_ticks]
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_label, "axis"))
    parts.append(f'<text class="axis" transform="translate(13 {middle:.0f}) rotate(-90)">{escape(y_label)}</text>')
    # the first line is ours and is drawn last, on top
    for line in reversed(lines):
        places = [(across(p.x), up(p.y), p) for p in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        parts.append(f'<polyline class="line s{line.style}" points="{path}"/>')
        for x, _, p in places:
            if p.low is not None and p.high is not None:
                parts.append(_stroke("whisker", line.style, x, up(p.low), x, up(p.high)))
        if len(places) <= 40:
            parts += [_marker(x, y, line.style, f"{line.label}: {p.note or f'{p.y:.4f}'}") for x, y, p in places]
    return _svg(f"{y_label} by {x_label}", WIDTH, HEIGHT, parts)


def interval_chart(rows: Sequence[tuple[str, int, Point]], *, x_label: str) -> str:
    """One row a system: its value and interval on a common scale; `y` of a point is the value."""
    step, left, top = 30, 118, 8
    height = top + step * len(rows) + 44
    marks = ticks(0.0, max(p.high if p.high is not None else p.y for _, _, p in rows))

    def across(value: float) -> float:
        return left + (value - marks[0]) / (marks[-1] - marks[0]) * (WIDTH - left - 62)

    bottom = top + step * len(rows)
    parts = [f'<line class="grid" x1="{across(m):.1f}" x2="{across(m):.1f}" y1="{top}" y2="{bottom}"/>' for m in marks]
    parts += [_text(across(m), bottom + 16, _number(m, marks)) for m in marks]
    parts.append(_text(across((marks[0] + marks[-1]) / 2), height - 6, x_label, "axis"))
    for n, (label, style, point) in enumerate(rows):
        y = top + step * (n + 0.5)
        parts.append(f'<text class="name" x="{left - 10}" y="{y + 4:.1f}">{escape(label)}</text>')
        if point.low is not None and point.high is not None:
            parts.append(_stroke("whisker wide", style, across(point.low), y, across(point.high), y))
        parts.append(_marker(across(point.y), y, style, f"{label}: {point.note or f'{point.y:.4f}'}"))
        end = across(point.y if point.high is None else point.high)
        parts.append(f'<text class="value" x="{end + 9:.1f}" y="{y + 4:.1f}">{point.y:.3f}</text>')
    return _svg(x_label, WIDTH, height, parts)


def legend(names: Sequence[tuple[str, int]]) -> str:
    """What each colour, dash and marker stands for."""
    items = []
    for label, style in names:
        sample = f'<line class="line s{style}" x1="1" x2="33" y1="8" y2="8"/>{_marker(17, 8, style, "")}'
        drawn = f'<svg viewBox="0 0 34 16" width="34" height="16" aria-hidden="true">{sample}</svg>'
        items.append(f"<li>{drawn}{escape(label)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _scale(x: float, log_x: bool) -> float:
    return log10(x) if log_x else x


def _number(value: float, marks: Sequence[float]) -> str:
    step = marks[1] - marks[0]
    return f"{value:.{max(0, -floor(log10(step) + 1e-9))}f}"


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    said = escape(title)
    return f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _horizontal(y: float, label: str) -> str:
    line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + f'<text class="tick left" x="{LEFT - 7}" y="{y + 4:.1f}">{escape(label)}</text>'


def _stroke(kind: str, style: int, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind} s{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _marker(x: float, y: float, style: int, note: str) -> str:
    """Circle, square, diamond, triangles, cross: systems differ in shape too, not by colour alone."""
    title = f"<title>{escape(note)}</title>" if note else ""
    corners = CORNERS[style % len(CORNERS)]
    if not corners:
        return f'<circle class="mark s{style}" cx="{x:.1f}" cy="{y:.1f}" r="4">{title}</circle>'
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon class="mark s{style}" points="{path}">{title}</polygon>'
