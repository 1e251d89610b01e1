"""`prism paper capacity`: MQAR over the number of pairs × the width, the "memory wall" of the paper's discussion."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prism.bench.report import COLOURS
from prism.config import at_least
from prism.data.probes_memory import Mqar
from prism.errors import InputError
from prism.files import write_whole
from prism.recipes.probing import parse_mixer
from prism.recipes.probing_report import save_figure
from prism.tasks.probing import ProbeModelConfig, ProbeTraining, run_probe

TRAINING = ProbeTraining(steps=3000, every=250)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One model on one number of pairs."""

    mixer: str
    dim: int
    pairs: int
    seed: int
    accuracy: float
    state: int
    """Numbers that all its layers remember of one sequence of this length."""


def capacity(
    mixers: tuple[str, ...] = ("linear-attention", "mamba2", "gated-deltanet", "prism"),
    dims: tuple[int, ...] = (16, 32),
    pairs: tuple[int, ...] = (2, 4, 8),
    seeds: int = 1,
    heads: int = 2,
    length: int = 48,
    steps: int = TRAINING.steps,
    out: Path = Path("capacity"),
) -> None:
    """MQAR accuracy over the number of pairs × state size, for PRISM and linear mixers.

    What OUT already holds is not run again.

    Args:
        mixers: Names from `prism list`, with fields after a colon: prism:steps=4.
        dims: Widths; the state grows with their square.
        pairs: Pairs to remember.
        seeds: Runs of each.
        heads: Heads of every mixer.
        length: Tokens of a sequence.
        steps: Updates of each run at most.
        out: Folder of the results: a JSON a run, capacity.png.
    """
    at_least("seeds", seeds, 1)
    for many in pairs:
        Mqar(length=length, pairs=many)
    training = replace(TRAINING, steps=steps)
    points = [
        point(mixer, dim, many, seed, heads=heads, length=length, training=training, out=out)
        for mixer in mixers
        for dim in dims
        for many in pairs
        for seed in range(seeds)
    ]
    plot(out / "capacity.png", points)
    print(f"wrote {out}/capacity.png")


def point(
    mixer: str, dim: int, pairs: int, seed: int, *, heads: int, length: int, training: ProbeTraining, out: Path
) -> Point:
    """One run, or what `out` holds of it."""
    path = out / f"{mixer.replace(':', '@')}-dim{dim}-pairs{pairs}-{seed}.json"
    settings: dict[str, Any] = {"heads": heads, "length": length, "training": asdict(training)}
    if path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.pop("settings") != settings:
            raise InputError(f"{path} is of a run with other settings: choose another --out, or remove it")
        return Point(**record)
    config = ProbeModelConfig(mixer=parse_mixer(mixer, heads), dim=dim)
    result, net = run_probe(Mqar(length=length, pairs=pairs), config, training, seed=seed)
    state = net.backbone.state_size(length)
    found = Point(mixer=mixer, dim=dim, pairs=pairs, seed=seed, accuracy=result.accuracy, state=state)
    write_whole(path, json.dumps(asdict(found) | {"settings": settings}, indent=1).encode())
    print(f"{mixer:<18} D={dim:<3} {pairs} pairs  accuracy {result.accuracy:.3f}  {result.seconds:.0f} s", flush=True)
    return found


def plot(path: Path, points: list[Point]) -> None:
    """Accuracy over the number of pairs, a panel a width, a line a mixer; the state's size in the legend."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    dims, mixers = sorted({p.dim for p in points}), list(dict.fromkeys(p.mixer for p in points))
    counts = sorted({p.pairs for p in points})
    figure, axes = plt.subplots(1, len(dims), figsize=(4.6 * len(dims), 3.8), squeeze=False, sharey=True)
    for axis, dim in zip(axes[0], dims, strict=True):
        for n, mixer in enumerate(mixers):
            mine = [p for p in points if (p.mixer, p.dim) == (mixer, dim)]
            mean = [np.mean([p.accuracy for p in mine if p.pairs == many]) for many in counts]
            label = f"{mixer} ({mine[0].state:,} numbers)"
            axis.plot(counts, mean, "o-", color=COLOURS[n % len(COLOURS)], label=label, markersize=4)
            axis.plot(
                [p.pairs for p in mine], [p.accuracy for p in mine], ".", color=COLOURS[n % len(COLOURS)], alpha=0.4
            )
        axis.axhline(Mqar().chance, color="#7f7f7f", linestyle=":", linewidth=1)
        axis.set(title=f"MQAR, D = {dim}", xlabel="pairs", ylim=(0, 1.04))
        axis.set_xticks(counts)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, frameon=False)
    axes[0][0].set_ylabel("accuracy")
    figure.tight_layout()
    save_figure(path, figure)
