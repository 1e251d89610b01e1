"""`prism paper capacity`: MQAR over the number of pairs × the width, the "memory wall" of the paper's discussion."""

from dataclasses import asdict, dataclass, replace
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np

from prism.config import positive, some
from prism.display.figures import line_style, pyplot, save_figure
from prism.display.tables import show
from prism.layers.spelling import spelled_mixers
from prism.probes.tasks.memory import Mqar
from prism.probes.training import ProbeModelConfig, ProbeTraining, run_probe
from prism.train.jobs import run_jobs

TRAINING = ProbeTraining(every=250)
# Those whose state does not grow with the sequence and is not an inner model trained by gradients.
LINEAR = (
    "linear-attention", "gla", "gsa", "mamba2", "deltanet", "gated-deltanet", "efla", "pgdn", "rwkv7", "mom", "prism",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one model came to."""

    accuracy: float
    state: int
    """Numbers that all its layers remember of one sequence of this length."""
    parameters: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Place:
    """One model on one number of pairs."""

    mixer: str
    """A name, and after a colon fields of its config."""
    dim: int
    pairs: int
    seed: int
    heads: int
    length: int
    training: ProbeTraining

    def model(self) -> ProbeModelConfig:
        """The paper's small model of this width."""
        mixer = spelled_mixers(self.mixer, ProbeModelConfig.layers, heads=self.heads)
        return ProbeModelConfig(mixer=mixer, dim=self.dim)

    def path(self, out: Path) -> Path:
        return out / f"{self.mixer.replace(':', '@')}-dim{self.dim}-pairs{self.pairs}-{self.seed}.json"

    def settings_json(self) -> dict[str, Any]:
        """What must be the same for a result to be this run's."""
        return asdict(self)

    def run(self) -> Point:
        probe = Mqar(length=self.length, pairs=self.pairs)
        result, net = run_probe(probe, self.model(), self.training, seed=self.seed)
        return Point(
            accuracy=result.accuracy,
            state=net.backbone.state_size(self.length),
            parameters=result.parameters,
            seconds=result.seconds,
        )

    def read(self, record: dict[str, Any]) -> Point:
        return Point(**record)

    def line(self, result: Point) -> str:
        return (
            f"{self.mixer:<18} D={self.dim:<3} {self.pairs:>2} pairs  seed {self.seed}  "
            f"accuracy {result.accuracy:.3f}  {result.seconds:.0f} s"
        )


def capacity(
    mixers: tuple[str, ...] = LINEAR,
    dims: tuple[int, ...] = (16, 32),
    pairs: tuple[int, ...] = (2, 4, 8),
    seeds: int = 1,
    heads: int = 2,
    length: int = 32,
    steps: int = TRAINING.steps,
    processes: int = cpu_count() or 1,
    out: Path = Path("capacity"),
) -> None:
    """MQAR accuracy over the number of pairs × state size, for PRISM and linear mixers.

    What OUT already holds is not run again.

    Args:
        mixers: Names from `prism list`, with fields after a colon: prism:steps=4; hybrids: prism,attention.
        dims: Widths; the state grows with their square.
        pairs: Pairs to remember.
        seeds: Runs of each.
        heads: Heads of every mixer.
        length: Tokens of a sequence.
        steps: Updates of each run at most.
        processes: Runs at a time, each on one thread.
        out: Folder of the results: one JSON per run, capacity.png.
    """
    some(mixers=mixers)
    positive(dims=dims, pairs=pairs, seeds=seeds, processes=processes)
    for many in pairs:
        Mqar(length=length, pairs=many)
    training = replace(TRAINING, steps=steps)
    places = [
        Place(mixer=mixer, dim=dim, pairs=many, seed=seed, heads=heads, length=length, training=training)
        for seed in range(seeds)
        for mixer in mixers
        for dim in dims
        for many in pairs
    ]
    for place in places:
        place.model().build()  # refuses what does not fit before anything runs
    points = run_jobs(places, out, processes)
    show_points(points)
    plot(out / "capacity.png", points)
    print(f"wrote {out}/capacity.png")


def show_points(points: dict[Place, Point]) -> None:
    """One row per mixer and width: the state's size, and the mean accuracy for each number of pairs."""
    counts = sorted({place.pairs for place in points})
    rows = []
    for mixer, dim in dict.fromkeys((place.mixer, place.dim) for place in points):
        mine = {place: point for place, point in points.items() if (place.mixer, place.dim) == (mixer, dim)}
        state = next(iter(mine.values())).state
        rows.append([mixer, str(dim), f"{state:,}", *(f"{_mean(mine, many):.3f}" for many in counts)])
    show("MQAR, accuracy", ["mixer", "D", "state", *(f"{many} pairs" for many in counts)], rows)


def _mean(points: dict[Place, Point], pairs: int) -> float:
    return float(np.mean([point.accuracy for place, point in points.items() if place.pairs == pairs]))


def plot(path: Path, points: dict[Place, Point]) -> None:
    """Accuracy over the number of pairs, one panel per width, one line per mixer; the state's size in the legend."""
    plt = pyplot()
    dims, mixers = sorted({place.dim for place in points}), list(dict.fromkeys(place.mixer for place in points))
    counts = sorted({place.pairs for place in points})
    figure, axes = plt.subplots(1, len(dims), figsize=(5.4 * len(dims), 5.4), squeeze=False, sharey=True)
    for axis, dim in zip(axes[0], dims, strict=True):
        for mixer in mixers:
            mine = {place: point for place, point in points.items() if (place.mixer, place.dim) == (mixer, dim)}
            style = line_style(mixer, mixers)
            label = f"{mixer} ({next(iter(mine.values())).state:,} numbers)"
            axis.plot(counts, [_mean(mine, many) for many in counts], **style, label=label, markersize=5)
            for place, point in mine.items():
                axis.plot(place.pairs, point.accuracy, **style, alpha=0.35, markersize=3)
        axis.axhline(Mqar().chance, color="#7f7f7f", linestyle=":", linewidth=1)
        axis.set(title=f"MQAR, D = {dim}", xlabel="pairs", ylim=(0, 1.04))
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(many) for many in counts])
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    axes[0][0].set_ylabel("accuracy")
    figure.tight_layout()
    save_figure(path, figure)
