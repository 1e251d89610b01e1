"""Results as tables: a row a system, Hit and NDCG at each cut-off, MRR, AUC, with intervals or spreads."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from prism.tasks.evaluation import Evaluation


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str | None = None) -> None:
    """Prints a table; wide ones are not folded when the output is a file."""
    below = None if caption is None else escape(caption)
    table = Table(title=title, title_justify="left", caption=below, caption_justify="left")
    for n, column in enumerate(columns):
        table.add_column(column, justify="right" if n else "left", no_wrap=not n)
    for row in rows:
        table.add_row(*row)
    console = Console(file=sys.stdout)
    Console(file=sys.stdout, width=None if console.is_terminal else 200, highlight=False).print(table)


def show_evaluations(title: str, found: dict[str, Evaluation]) -> None:
    """A row a system: the mean over events of each metric, and half the width of its 95 % interval."""
    first = next(iter(found.values()))
    metrics = list(first.values)
    rows = []
    for name, evaluation in found.items():
        means = evaluation.means["event"]
        cells = [f"{means[m].mean:.4f} ±{(means[m].high - means[m].low) / 2:.4f}" for m in metrics]
        rows.append([name, *cells])
    cold = f", {first.cold:,} cold events left out" if first.cold else ""
    note = f"{len(first.ranks):,} queries{cold}; mean over events ± half of the 95 % interval over users"
    show(title, ["", *metrics], rows, caption=note)
