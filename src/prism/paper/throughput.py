"""`prism paper throughput`: the paper's efficiency figure, every mixer in models of one size, over length × batch."""

from pathlib import Path
from typing import Literal

from prism.bench.model import STUDY, model

Scale = Literal["cpu", "paper"]
SIZES = {
    "cpu": ((512, 8), (2048, 2), (8192, 1)),
    "paper": ((2048, 8), (4096, 4), (8192, 2), (16384, 1)),
}


def throughput(
    scale: Scale = "cpu", num_threads: int = 1, repeats: int = 3, out: Path = Path("paper-throughput")
) -> None:
    """Training throughput over sequence length × batch, with the paper's three statements beside ours.

    Args:
        scale: `cpu`: D=128, 2 layers, minutes on one core; `paper`: the 0.13B setting, D=768, 12 layers.
        num_threads: Torch threads.
        repeats: Steps of each, taken in turns; the median counts.
        out: Where results go: OUT.json and OUT.png.
    """
    dim, layers, heads = (128, 2, 4) if scale == "cpu" else (768, 12, 8)
    model(
        sizes=SIZES[scale], mixers=STUDY, dim=dim, layers=layers, heads=heads, num_threads=num_threads,
        repeats=repeats, out=out,
    )  # fmt: skip
