"""What a benchmark leaves behind: a table on the screen, JSON, and a picture."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any

from prism.bench.measure import Measurement
from prism.display.figures import line_style, pyplot, save_figure
from prism.display.tables import Cell, show
from prism.errors import InputError
from prism.files import refuse_folder, write_whole, writing
from prism.machine import machine


@dataclass(frozen=True)
class Claim:
    """A ratio, what was measured, and the limit that it should keep, if any."""

    text: str
    measured: float
    _: KW_ONLY
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the measured ratio is within its limits."""
        return (self.least is None or self.measured >= self.least) and (self.most is None or self.measured <= self.most)

    @property
    def limit(self) -> str:
        """The limit, as read aloud; nothing where the ratio is only reported."""
        if self.least is None and self.most is None:
            return ""
        if self.least is not None and self.most is not None:
            return f"from {self.least:g} to {self.most:g}"
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"

    @property
    def verdict(self) -> str:
        """Whether it holds, in a word; nothing where the ratio is only reported."""
        return ("yes" if self.holds else "NO") if self.limit else ""


def show_measurements(rows: Sequence[Measurement], title: str) -> None:
    """One row per system, one column per length: tokens per second (and peak memory below, where measured)."""
    lengths = sorted({row.size["T"] for row in rows})
    cells: list[list[Cell]] = []
    for system in dict.fromkeys(row.system for row in rows):
        found = {row.size["T"]: row for row in rows if row.system == system}
        cells.append([system, *(_cell(found.get(length)) for length in lengths)])
    show(title, ["system", *(f"T={length:,}" for length in lengths)], cells)


def _cell(row: Measurement | None) -> tuple[str, ...]:
    if row is None:
        return ("–",)
    memory = () if row.peak_bytes is None else (f"{row.peak_bytes / 2**20:,.0f} MiB",)
    speed = row.tokens_per_second
    return (f"{speed / 1000:,.1f} k/s" if speed >= 1000 else f"{speed:,.0f} /s", *memory)


def show_claims(claims: Sequence[Claim]) -> None:
    """The ratios, each beside its limit."""
    if not claims:
        return
    rows = [[claim.text, f"{claim.measured:.2f}", claim.limit, claim.verdict] for claim in claims]
    show("ratios, from this run", ["ratio", "measured", "should be", "holds"], rows, left=(0, 2, 3))


def check_out(out: Path) -> None:
    """Refuses a place for OUT.json and OUT.png where nothing could be written, before anything is measured."""
    if not out.name:
        raise InputError(f"--out {out} has no name: results go to NAME.json and NAME.png")
    for kind in (".json", ".png"):
        refuse_folder(out.with_suffix(kind))
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)


def leave(
    out: Path,
    record: dict[str, Any],
    panels: Mapping[str, Sequence[Measurement]],
    claims: Sequence[Claim],
    title: str,
    beside: Sequence[Measurement] = (),
) -> None:
    """Prints the ratios, writes OUT.json, with what was measured `beside`, and OUT.png."""
    show_claims(claims)
    rows = [*(row for panel in panels.values() for row in panel), *beside]
    write_json(out.with_suffix(".json"), record, rows, claims)
    write_plot(out.with_suffix(".png"), panels, title)
    print(f"wrote {out.with_suffix('.json')} and {out.with_suffix('.png')}")


def write_json(path: Path, record: dict[str, Any], rows: Sequence[Measurement], claims: Sequence[Claim]) -> None:
    """The whole run as one file, there whole or not at all."""
    content = {
        "machine": machine(),
        **record,
        "measurements": [asdict(row) | {"tokens_per_second": row.tokens_per_second} for row in rows],
        "ratios": [asdict(claim) | {"holds": claim.holds} for claim in claims],
    }
    write_whole(path, json.dumps(content, indent=2).encode())


def write_plot(path: Path, panels: Mapping[str, Sequence[Measurement]], title: str) -> None:
    """Tokens per second over the sequence length, a panel for each kind of work."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 4.2), sharey=True, squeeze=False)
    systems = list(dict.fromkeys(row.system for rows in panels.values() for row in rows))
    for axis, (name, rows) in zip(axes[0], panels.items(), strict=True):
        for system in systems:
            points = sorted((row.size["T"], row.tokens_per_second) for row in rows if row.system == system)
            axis.plot(*zip(*points, strict=True), label=system, markersize=4, **line_style(system, systems))
        lengths = sorted({row.size["T"] for row in rows})
        axis.set(title=name, xlabel="sequence length", xscale="log", yscale="log")
        axis.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=30)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("tokens per second")
    axes[0][-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    save_figure(path, figure)
