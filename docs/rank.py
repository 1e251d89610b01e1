"""The picture of docs/rank.md and the rows of its tables, from the runs in docs/benchmarks/rank.json.

    python docs/rank.py                # draws docs/img/rank.png and prints the rows, which a test looks for on the page
    python docs/rank.py runs/rank …    # takes over what `prism paper rank --out runs/rank` left there, first

A run belongs to the table whose settings it has; each table stands with the commands that run it. Of runs from before
this file was kept there is what the page printed: three digits, marked `printed`.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from prism.display.figures import COLOURS, pyplot, save_figure
from prism.paper.rank import SETTINGS
from prism.probes.tasks.spelling import spelled_probe

DOCS = Path(__file__).parent
KEPT = DOCS / "benchmarks" / "rank.json"
FIGURES = ("accuracy", "longer", "solved_at", "steps", "parameters")

Record = dict[str, Any]

# The picture's panels, and its lines from the first to the last one drawn: what a token does to the state, a colour
# and a marker, and the mixers that do it.
PANELS = {
    "running-parity": "parity of the bits so far",
    "modular-counting": "counting modulo 5",
    "s3": "words of S3: a triangle turned and flipped",
    "s4:sign=true": "words of S4: a cube turned",
}
LINES = {
    "attention": (COLOURS[6], "X", ("attention",)),
    "rank 1, damps one direction: Gated DeltaNet": (COLOURS[4], "D", ("gated-deltanet",)),
    "rank 1, turns one in part: RWKV-7": (COLOURS[3], "P", ("rwkv7",)),
    "writes rank 2, damps one: PRISM as printed": (COLOURS[1], "v", ("prism",)),
    "writes rank 4, damps one: prism:steps=4": (COLOURS[1], "1", ("prism:steps=4",)),
    "writes rank 2, damps both: forget=all": (COLOURS[7], "<", ("prism:forget=all",)),
    "turns one round: prism:tracking, L = 1": (COLOURS[5], "s", ("prism:tracking,steps=1",)),
    "turns four round: prism:tracking, L = 4": (COLOURS[5], "h", ("prism:tracking,steps=4",)),
    "turns two round: DeltaProduct": (COLOURS[2], "^", ("deltaproduct", "deltaproduct:heads=8,head_key=3,conv_size=1")),
    "turns two round: prism:rewrite": (COLOURS[0], "*", ("prism:rewrite",)),
    "turns two round: prism:tracking, prism:rotations": (
        COLOURS[0],
        "o",
        ("prism:tracking", "prism:rotations,heads=8"),
    ),
}


def changed(settings: Record, default: Record) -> Record:
    """The settings that are not those of `prism paper rank`; of a group of them, its own."""
    found = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= changed(value, default[name])
        elif value != default[name]:
            found[name] = value
    return found


def take_over(kept: Record, folder: Path) -> int:
    """The runs of a folder, each in place of the same task, mixer and seed with its settings; how many there were."""
    files = sorted(folder.glob("*/*.json"))
    for file in files:
        record = json.loads(file.read_text(encoding="utf-8"))
        settings = changed(record["settings"], json.loads(json.dumps(asdict(SETTINGS))))
        tables = [table for table in kept["tables"] if table["settings"] == settings]
        if not tables:
            sys.exit(f"{file}: no table of {KEPT.name} has the settings {settings}: add it there, with its command")
        name = {key: record[key] for key in ("task", "mixer", "seed")}
        others = [run for run in tables[0]["runs"] if {key: run[key] for key in name} != name]
        tables[0]["runs"] = [*others, name | {key: record[key] for key in FIGURES}]
    return len(files)


def figure(x: float) -> str:
    """Three digits; four where three would hide the only mistake."""
    text = f"{x:.3f}" if x == 1 or round(x, 3) < 1 else f"{x:.4f}"
    return text.removeprefix("0")


def rows(table: Record) -> dict[tuple[str, str], str]:
    """By task and mixer the figures of its seeds, a cell for each length."""
    found = {}
    for task, mixer in dict.fromkeys((run["task"], run["mixer"]) for run in table["runs"]):
        mine = [run for run in table["runs"] if (run["task"], run["mixer"]) == (task, mixer)]
        mine.sort(key=lambda run: run["seed"])
        cells = [[run["accuracy"] for run in mine], *([run["longer"][n] for run in mine] for n in mine[0]["longer"])]
        found[task, mixer] = f"| {' | '.join(' '.join(figure(x) for x in cell) for cell in cells)} |"
    return found


def drawn(kept: Record) -> dict[tuple[str, str], list[list[float]]]:
    """By task and mixer what is drawn: medians at 1, 4 and 16 times the training length, then each seed."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for table in kept["tables"]:
        for run in table["runs"]:
            if table["drawn"] and run["task"] in PANELS:
                seen = found.setdefault((run["task"], run["mixer"]), [])
                seen.append([run["accuracy"], *run["longer"].values()])
    return {key: [[median(at) for at in zip(*seeds, strict=True)], *seeds] for key, seeds in found.items()}


def draw(path: Path, found: dict[tuple[str, str], list[list[float]]]) -> None:
    """Accuracy over length, one panel per task; chance is dotted, the length of training is shaded."""
    plt = pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(9.0, 7.9), sharex=True, sharey=True)
    for axis, (task, title) in zip(axes.flat, PANELS.items(), strict=True):
        axis.axvspan(0.8, 1.25, color="#0072b2", alpha=0.08, linewidth=0)
        axis.axhline(spelled_probe(task).chance, color="#7f7f7f", linestyle=":", linewidth=1.2)
        for label, (colour, marker, mixers) in LINES.items():
            for seeds in (found[task, mixer] for mixer in mixers if (task, mixer) in found):
                style = {"color": colour, "marker": marker}
                ours = "prism:rotations" in label
                axis.plot((1, 4, 16), seeds[0], **style, linewidth=2.8 if ours else 1.5, markersize=7 if ours else 5)
                for seed in seeds[1:]:
                    axis.plot((1, 4, 16), seed, **style, linewidth=0, alpha=0.3, markersize=3.5)
        axis.set(title=title, ylim=(0, 1.04), xlim=(0.8, 20))
        axis.set_xscale("log", base=2)
        axis.set_xticks((1, 4, 16), ("as taught", "4 times", "16 times"))
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[1]:
        axis.set_xlabel("length of the sequence")
    for axis in axes[:, 0]:
        axis.set_ylabel("right at the last token")
    handles = [
        plt.Line2D([], [], color=colour, marker=marker, linewidth=2.8 if "prism:rotations" in label else 1.5)
        for label, (colour, marker, _) in LINES.items()
    ]
    figure.legend(handles[::-1], list(LINES)[::-1], loc="lower center", ncols=2, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.175, 1, 1))
    save_figure(path, figure)


def main(folders: list[str]) -> None:
    """Takes over, draws, prints."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    for folder in folders:
        print(f"{folder}: {take_over(kept, Path(folder))} runs")
    if folders:
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    draw(DOCS / "img" / "rank.png", drawn(kept))
    for table in kept["tables"]:
        print("", *(f"    {command}" for command in table["commands"]), "", sep="\n")
        for (task, mixer), figures in rows(table).items():
            print(f"| {task}, `{mixer}` {figures}")
    print("\nwrote docs/img/rank.png")


if __name__ == "__main__":
    main(sys.argv[1:])
