"""Results as tables: one row per system, Hit and NDCG at each cut-off, MRR, AUC, with intervals or spreads."""

from prism.display.tables import show
from prism.recommend.evaluation.ranking import Evaluation


def show_evaluations(title: str, found: dict[str, Evaluation]) -> None:
    """One row per system: the mean over events of each metric, and half the width of its 95 % interval."""
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
