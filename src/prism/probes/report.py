"""What probe runs leave behind: the table, the paper's figure beside each of ours, and the learning curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from prism.display.figures import COLOURS, pyplot, save_figure
from prism.display.tables import Cell, as_text, show_all, table
from prism.printed import PROBING, PROBING_MIXERS
from prism.probes.tasks.spelling import probe_kind, spelled_probe
from prism.probes.training import ProbeResult

# (task, mixer, seed)
Results = Mapping[tuple[str, str, int], ProbeResult]


def paper_accuracy(task: str, mixer: str) -> float | None:
    """What the paper prints, if it does."""
    return PROBING[task][PROBING_MIXERS.index(mixer)] if task in PROBING and mixer in PROBING_MIXERS else None


def cell(task: str, mixer: str, runs: list[ProbeResult]) -> tuple[str, ...]:
    """Accuracy as mean ± standard deviation, the paper's in brackets; medians at other lengths, and of steps."""
    if not runs:
        return ("–",)
    accuracies = [run.accuracy for run in runs]
    text = f"{mean(accuracies):.3f}" + (f" ± {stdev(accuracies):.3f}" if len(runs) > 1 else "")
    paper = paper_accuracy(task, mixer)
    text += "" if paper is None else f" [{paper:.2f}]"
    longer = [f"{median(run.longer[n] for run in runs):.3f} at {int(n):,} tokens" for n in runs[0].longer]
    solved = [run.solved_at for run in runs if run.solved_at is not None]
    if not solved:
        return (text, *longer, "not solved")
    often = f" ({len(solved)}/{len(runs)} seeds)" if len(runs) > 1 else ""
    return (text, *longer, f"solved at {median(solved):,.0f}{often}")


def show_table(results: Results) -> str:
    """Prints the table and returns it as text."""
    tasks = list(dict.fromkeys(task for task, _, _ in results))
    mixers = list(dict.fromkeys(mixer for _, mixer, _ in results))
    rows: list[list[Cell]] = []
    for task in tasks:
        runs = {mixer: [run for key, run in results.items() if key[:2] == (task, mixer)] for mixer in mixers}
        cells = [cell(task, mixer, of) for mixer, of in runs.items()]
        rows.append([task, f"{spelled_probe(task).chance:.3f}", *cells])
    seeds = len({seed for _, _, seed in results})
    title = f"accuracy on unseen examples, {seeds} seed(s), the paper's in brackets; updates until solved"
    made = table(["task", "chance", *mixers], rows, lines=True)
    show_all(title, made)
    return as_text(title, made)


def has_lengths(results: Results) -> bool:
    """Whether any task was tested at several lengths."""
    return any(run.longer for run in results.values())


def _panels(plt: Any, tasks: Sequence[str], across: str, up: str) -> tuple[Any, list[Any]]:
    """A figure with one titled panel per task, three in a row, two of four; the outer ones name their axes."""
    columns = 2 if len(tasks) == 4 else min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.0 * rows + 0.8), squeeze=False, sharey=True)
    for axis in axes.flat[len(tasks) :]:
        axis.axis("off")
    panels = list(axes.flat[: len(tasks)])
    for axis in panels[-columns:]:
        axis.set_xlabel(across)
    for axis in axes[:, 0]:
        axis.set_ylabel(up)
    for axis, task in zip(panels, tasks, strict=True):
        axis.set(title=task, ylim=(0, 1.04))
        axis.grid(alpha=0.3)
    return figure, panels


def write_lengths(path: Path, results: Results) -> None:
    """Accuracy over the length of the sequences tested, for tasks that have several: medians, and a dot for each seed.

    One panel per task, one line per mixer; chance is dotted.
    """
    plt = pyplot()
    tasks = list(dict.fromkeys(task for (task, _, _), run in results.items() if run.longer))
    mixers = list(dict.fromkeys(mixer for task, mixer, _ in results if task in tasks))
    figure, panels = _panels(plt, tasks, "tokens, the first as in training", "accuracy at the last token")
    for axis, task in zip(panels, tasks, strict=True):
        first = spelled_probe(task).chance
        for n, mixer in enumerate(mixers):
            runs = [run for key, run in results.items() if key[:2] == (task, mixer)]
            if not runs:
                continue
            trained = min(int(length) for length in runs[0].longer) // min(probe_kind(task).longer)
            seen = [{trained: run.accuracy} | {int(length): x for length, x in run.longer.items()} for run in runs]
            lengths = sorted(seen[0])
            style = {"color": COLOURS[n % len(COLOURS)], "marker": "os^vDPX*"[n % 8]}
            axis.plot(lengths, [median(one[x] for one in seen) for x in lengths], **style, linewidth=1.5, markersize=5)
            for one in seen:
                axis.plot(lengths, [one[x] for x in lengths], **style, linewidth=0, alpha=0.35, markersize=3)
        axis.axhline(first, color="#7f7f7f", linestyle=":", linewidth=1)
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [f"{x:,}" for x in lengths])
        axis.minorticks_off()
    lines = [plt.Line2D([], [], color=COLOURS[n % len(COLOURS)], marker="os^vDPX*"[n % 8]) for n in range(len(mixers))]
    beside = min(len(mixers), round(figure.get_figwidth() / 4.2))  # a spelling with fields is as wide as a panel
    figure.legend(lines, mixers, loc="lower center", ncols=beside, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, (0.1 + 0.2 * -(-len(mixers) // beside)) / figure.get_figheight(), 1, 1))
    save_figure(path, figure)


def write_curves(path: Path, results: Results, growths: Mapping[str, list[int]]) -> None:
    """Accuracy over updates, one panel per task, one line per seed; dotted: chance, and where sequences grow."""
    plt = pyplot()
    tasks = list(dict.fromkeys(task for task, _, _ in results))
    mixers = list(dict.fromkeys(mixer for _, mixer, _ in results))
    figure, panels = _panels(plt, tasks, "updates", "accuracy")
    for axis, task in zip(panels, tasks, strict=True):
        for (t, mixer, _), run in results.items():
            if t == task:
                colour = COLOURS[mixers.index(mixer) % len(COLOURS)]
                points = [(look.step, look.accuracy) for look in run.curve]
                axis.plot(*zip(*points, strict=True), color=colour, linewidth=1.3, alpha=0.85)
                axis.plot(*points[-1], "o", color=colour, markersize=4)
        axis.axhline(spelled_probe(task).chance, color="#7f7f7f", linestyle=":", linewidth=1)
        end = axis.get_xlim()[1]
        for step in growths[task]:
            if step < end:
                axis.axvline(step, color="#7f7f7f", linestyle=":", linewidth=1)
    lines = [plt.Line2D([], [], color=COLOURS[n % len(COLOURS)]) for n in range(len(mixers))]
    figure.legend(lines, mixers, loc="lower center", ncols=min(len(mixers), 6), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    save_figure(path, figure)
