"""ML-1M, leave-one-out, full ranking, the last 200 events: the setting of the published tables of SASRec and HSTU.

`prism paper ml1m` trains and compares; one run of it is

    prism fit ml-1m --out RUN --protocol leave-one-out --dim 96 --layers 2 --dropout 0.2
        --time-gaps True --query-time False --projection False --start random --rehearsal False --experts
        --batch 32 --length 200 --windows last --lr 4e-3 --epochs 10 --patience 10 --evaluate-every 5
"""

from dataclasses import replace
from pathlib import Path

from prism.config import positive
from prism.recommend.commands.compare import compare_on, variant
from prism.recommend.config import PLAIN, FitConfig
from prism.recommend.data.known import load
from prism.recommend.data.reading import Reading
from prism.recommend.data.splits import split
from prism.recommend.evaluation.rows import Row, refuse_failures, show_rows
from prism.recommend.training.task import BatchConfig
from prism.train.config import TrainConfig

# hit and ndcg at 10, 50 and 200, as published with HSTU
PUBLISHED = {
    "SASRec (published)": (0.2853, 0.5474, 0.7528, 0.1603, 0.2185, 0.2498),
    "HSTU (published)": (0.3097, 0.5754, 0.7716, 0.1720, 0.2307, 0.2606),
    "HSTU-large (published)": (0.3294, 0.5935, 0.7839, 0.1893, 0.2481, 0.2771),
}
COLUMNS = ("hit@10", "hit@50", "hit@200", "ndcg@10", "ndcg@50", "ndcg@200")


def recipe(*, dim: int = 96, epochs: int = 10) -> FitConfig:
    """The model alone: two blocks, two heads, batches of 32 users, time gaps."""
    # chosen on PRISM's validation event, seed 0: after 7 of 14 epochs NDCG@10 was .169 with lr 1.5e-3 and dropout 0.25,
    # .187 with 3e-3 and 0.25, .193 with 4e-3 and 0.2; the time of the question and an offset for each film, tried
    # together later, came to .224 after 10 of 10: not part of the published setting, nor of the table in the docs
    return replace(
        PLAIN,
        protocol="leave-one-out",
        dim=dim,
        layers=2,
        dropout=0.2,
        time_gaps=True,
        batching=BatchConfig(batch=32, length=200, windows="last"),
        train=TrainConfig(epochs=epochs, lr=4e-3, patience=epochs, evaluate_every=5),
    )


def ml1m(
    mixers: tuple[str, ...] = ("prism", "prism:steps=0", "gated-deltanet", "sasrec", "hstu"),
    seeds: int = 1,
    dim: int = 96,
    epochs: int = 10,
    processes: int = 1,
    out: Path = Path("runs/ml1m"),
    folder: Path | None = None,
) -> None:
    """ML-1M by leave-one-out beside the published numbers: same loss, inputs and budget for every mixer.

    Args:
        mixers: Names of `prism list`, with options after a colon; prism:steps=0 writes the value as it is, at rank 1.
        seeds: Runs of each.
        dim: Width of all models.
        epochs: Passes over the data; of every fifth the best by validation NDCG@10 is tested.
        processes: Runs at a time; more than one show no progress bars and have a thread each.
        out: Folder of the runs; started again, it does what is left.
        folder: Where the data are; default: $PRISM_DATA or ~/.cache/prism.
    """
    positive(seeds=seeds, processes=processes)
    config = recipe(dim=dim, epochs=epochs)
    configs = {name: variant(config, name) for name in mixers}
    divided = split(load("ml-1m", Reading(folder=folder)), config.protocol)
    print(divided.describe(), flush=True)
    rows = compare_on(divided, config, configs, seeds, out, processes=processes)
    show_rows("ml-1m, leave-one-out, test", [*rows, *published()], columns=COLUMNS)
    refuse_failures(rows)


def published() -> list[Row]:
    """The rows of the literature."""
    return [Row(name, (dict(zip(COLUMNS, values, strict=True)),)) for name, values in PUBLISHED.items()]
