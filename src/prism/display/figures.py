"""Figures: one palette, lines that stay apart, PNG files that appear whole."""

import io
import re
from pathlib import Path
from typing import Any

from prism.errors import needs
from prism.files import write_whole

# Colours that stay apart for colour-blind readers; ours are the strong ones.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")


def pyplot() -> Any:
    """matplotlib's pyplot, drawing to files only."""
    needs("matplotlib", extra="plots")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save_figure(path: Path, figure: Any) -> None:
    """A PNG, there whole or not at all; the figure is closed."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    pyplot().close(figure)
    write_whole(path, buffer.getvalue())


def line_style(system: str, systems: list[str]) -> dict[str, str]:
    """A colour for each family (what comes before a colon or comma), a line for each of its members; then markers."""
    of = {name: re.split("[:,]", name)[0] for name in systems}
    families = list(dict.fromkeys(of.values()))
    family = families.index(of[system])
    members = [name for name in systems if of[name] == of[system]]
    return {
        "color": COLOURS[family % len(COLOURS)],
        "linestyle": ("-", "--", ":", "-.")[members.index(system) % 4],
        "marker": "os^vD"[family // len(COLOURS) % 5],
    }
