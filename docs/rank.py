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
from typing import Any

from prism.paper.rank import SETTINGS
from prism.probes.report import write_lengths
from prism.probes.training import ProbeResult

DOCS = Path(__file__).parent
KEPT = DOCS / "benchmarks" / "rank.json"
FIGURES = ("accuracy", "longer", "solved_at", "steps", "parameters")

Record = dict[str, Any]


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


def drawn(kept: Record) -> dict[tuple[str, str, int], ProbeResult]:
    """The runs of the picture: those of the tables that are drawn, of the tasks that were learned."""
    left = {"curve": [], "seconds": 0.0, "parameters": 0, "steps": 0, "solved_at": None}
    return {
        (run["task"], run["mixer"], run["seed"]): ProbeResult.from_json(
            left | {key: run[key] for key in FIGURES if key in run}
        )
        for task in kept["drawn"]
        for table in kept["tables"]
        for run in table["runs"]
        if table["drawn"] and run["task"] == task
    }


def main(folders: list[str]) -> None:
    """Takes over, draws, prints."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    for folder in folders:
        print(f"{folder}: {take_over(kept, Path(folder))} runs")
    if folders:
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    write_lengths(DOCS / "img" / "rank.png", drawn(kept))
    for table in kept["tables"]:
        print("", *(f"    {command}" for command in table["commands"]), "", sep="\n")
        for (task, mixer), figures in rows(table).items():
            print(f"| {task}, `{mixer}` {figures}")
    print("\nwrote docs/img/rank.png")


if __name__ == "__main__":
    main(sys.argv[1:])
