"""The picture of the README, from the measurements in docs/benchmarks: speed over length, and one more event.

    python docs/front.py

draws `docs/img/front.svg`. The measurements are written by `prism bench op --out docs/benchmarks/op` and
`prism bench decode --out docs/benchmarks/decode`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parent
OURS, PEER, OTHER, TEXT, FRAME = "#0b5fa5", "#d1495b", "#8a8f98", "#24292f", "#d0d7de"

Line = list[tuple[int, float]]
# name → its line, its colour, and where the name stands: beside which point, and how far from it
Lines = dict[str, tuple[Line, str, int, tuple[int, int]]]


def measured(name: str, system: str, work: str, unit: float = 1.0) -> Line:
    """(length, tokens per second × unit) of one system, shortest first."""
    rows = json.loads((DOCS / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))["measurements"]
    matching = [row for row in rows if row["system"] == system and row["work"] == work]
    found = [(row["size"]["T"], row["tokens_per_second"] * unit) for row in matching]
    if not found:
        sys.exit(f"docs/benchmarks/{name}.json has no {work} of {system!r}: run `prism bench {name}` with it")
    return sorted(found)


def cost(line: Line) -> Line:
    """Milliseconds for one token."""
    return [(length, 1000 / speed) for length, speed in line]


def draw(axis: Any, lines: Lines, title: str, below: str, unit: str) -> None:
    """One panel: each line with its name beside one of its points."""
    axis.set_title(title, loc="left", fontsize=11.5, fontweight="bold", color=TEXT, pad=12)
    for name, (line, colour, at, away) in lines.items():
        x, y = zip(*line, strict=True)
        axis.plot(x, y, color=colour, linewidth=2.6 if colour == OURS else 2, marker="o", markersize=4.5)
        axis.annotate(name, (x[at], y[at]), away, textcoords="offset points", color=colour, va="center", fontsize=9.5)
    lengths = [x for x, _ in next(iter(lines.values()))[0]]
    axis.set_xscale("log")
    axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set_xlabel(below, color=TEXT)
    axis.set_ylabel(unit, color=TEXT)
    axis.tick_params(colors=TEXT, length=0, labelsize=9)
    axis.grid(axis="y", color=FRAME, linewidth=0.8)
    axis.set_axisbelow(True)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(FRAME)


def main() -> None:
    """Both panels into one SVG, the same bytes from the same measurements."""
    plt.rcParams |= {"font.family": "DejaVu Sans", "svg.hashsalt": "prism", "svg.fonttype": "path"}
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.9))
    work = "forward+backward"
    fallback = measured("op", "transformers fallback, L=1", work, 1e-3)
    thousand: Lines = {
        "PRISM, L = 2": (measured("op", "prism cpu, L=2", work, 1e-3), OURS, 3, (-34, -15)),
        "PyTorch's attention": (measured("op", "PyTorch causal attention", work, 1e-3), PEER, 2, (8, 6)),
        "Gated DeltaNet\nin transformers": (fallback, OTHER, 0, (0, -34)),
    }
    draw(left, thousand, "Training: length costs nothing extra", "length of the sequence", "thousand tokens per second")
    milliseconds: Lines = {
        "PRISM, L = 2": (cost(measured("decode", "prism", "decode")), OURS, -1, (-64, 12)),
        "attention": (cost(measured("decode", "attention", "decode")), PEER, -1, (-60, 0)),
    }
    draw(right, milliseconds, "Live: one more event costs the same", "events so far", "milliseconds per event")
    figure.tight_layout(w_pad=3)
    figure.savefig(DOCS / "img" / "front.svg", metadata={"Date": None}, facecolor="white", bbox_inches="tight")
    print("wrote docs/img/front.svg")


if __name__ == "__main__":
    main()
