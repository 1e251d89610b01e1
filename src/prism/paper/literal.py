"""`prism paper literal`: Algorithm 1 as printed beside PRISM as it is here, one unprinted choice at a time.

Four columns: how large the state of an untrained layer grows with the sequence, recall after training, and where they
are asked for ML-1M and language; each can be left out. A run that diverges is a result.
"""

import json
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from os import cpu_count
from pathlib import Path
from statistics import median
from typing import Any

import torch

from prism.config import at_least, one_of, positive, some
from prism.display.tables import show
from prism.errors import DivergedError
from prism.files import write_whole
from prism.layers.spelling import spelled_mixer
from prism.machine import machine
from prism.paper.capacity import TRAINING, Place, Point
from prism.paper.language.command import run_study
from prism.paper.language.settings import Study, StudySettings
from prism.paper.ml1m import recipe
from prism.recommend.commands.compare import compare_on, variant
from prism.recommend.data.known import load
from prism.recommend.data.reading import Reading
from prism.recommend.data.splits import split
from prism.train.jobs import run_jobs

# Each choice the other way, the two that the lemma on the spectrum needs together, and all of them.
ROWS = {
    "default": "prism",
    "no LayerNorm on u": "prism:anchor_norm=none",
    "β linear": "prism:strength=linear",
    "raw keys": "prism:unit_keys=false",
    "β linear, raw keys": "prism:strength=linear,unit_keys=false",
    "raw queries": "prism:unit_queries=false",
    "gain without bias": "prism:gain_bias=false",
    "plain read": "prism:read=plain",
    "decays from a half": "prism:decay_start=zero",
    "random taps": "prism:conv_start=random",
    "window before the token": "prism:window=past",
    "literal": "prism:literal",
}
LENGTHS = (64, 512, 4096)
# Width and heads of the layer whose state is looked at.
DIM, HEADS = 64, 2


@torch.no_grad()
def state_sizes(spelling: str, lengths: tuple[int, ...] = LENGTHS, seeds: int = 3) -> list[float]:
    """‖S_T‖ of an untrained layer on normal input after each length, in float64: the median of the seeds."""
    found: dict[int, list[float]] = {length: [] for length in lengths}
    for seed in range(seeds):
        torch.manual_seed(seed)
        layer = spelled_mixer(spelling, heads=HEADS).build(DIM).double()
        x, state, done = torch.randn(1, max(lengths), DIM, dtype=torch.float64), None, 0
        for length in sorted(lengths):
            _, state = layer(x[:, done:length], state)
            size, done = float(state[-1].double().norm()), length
            found[length].append(size if isfinite(size) else inf)
    return [median(found[length]) for length in lengths]


@dataclass(frozen=True, kw_only=True)
class Recall(Place):
    """MQAR, where a run that diverges has the accuracy of no answer."""

    def run(self) -> Point:
        try:
            return super().run()
        except DivergedError:
            return Point(accuracy=0.0, state=0, parameters=0, seconds=0.0)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One row of the table; None: not run, infinity: diverged."""

    row: str
    spelling: str
    sizes: list[float]
    """‖S_T‖ at `LENGTHS`."""
    mqar: list[float]
    """Accuracy of each seed; 0: diverged. Empty, here and below: not run."""
    ml1m: list[float | None]
    """NDCG@10 of each seed; None: diverged."""
    language: list[float]
    """Validation perplexity of each seed."""


def literal(
    rows: tuple[str, ...] = tuple(ROWS),
    seeds: int = 1,
    updates: int = TRAINING.steps,
    pairs: int = 4,
    dim: int = 32,
    ml1m_epochs: int = 0,
    language_tokens: int = 0,
    processes: int = cpu_count() or 1,
    out: Path = Path("runs/literal"),
    folder: Path | None = None,
) -> None:
    """PRISM as printed beside PRISM as it is here: stability over T, recall, ML-1M, language; run again, it continues.

    Args:
        rows: Some of default, literal and the single choices; see the table.
        seeds: Runs of each, with seeds 0, 1, …
        updates: Training of each MQAR run; 0: MQAR is left out.
        pairs: Pairs that MQAR asks to remember, in 32 tokens.
        dim: Width of its models.
        ml1m_epochs: Epochs of each run on ML-1M (10 in `prism paper ml1m`); 0: ML-1M is left out.
        language_tokens: Tokens of each language model (1,200,000 in `prism paper language`); 0: language is left out.
        processes: Runs at a time, each on one thread.
        out: Folder of the runs and of literal.json.
        folder: Where ML-1M is; default: $PRISM_DATA or ~/.cache/prism.
    """
    some(rows=rows)
    positive(seeds=seeds, processes=processes)
    at_least("updates", updates, 0)
    at_least("ml1m_epochs", ml1m_epochs, 0)
    at_least("language_tokens", language_tokens, 0)
    for row in rows:
        one_of("rows", row, tuple(ROWS))
    spellings = {row: ROWS[row] for row in rows}
    recalled = _mqar(spellings, seeds, updates, pairs, dim, processes, out / "mqar") if updates else {}
    films = _ml1m(spellings, seeds, ml1m_epochs, processes, out / "ml1m", folder) if ml1m_epochs else {}
    texts = _language(spellings, seeds, language_tokens, processes, out / "language") if language_tokens else {}
    found = [
        Measured(
            row=row,
            spelling=spelling,
            sizes=state_sizes(spelling),
            mqar=recalled.get(row, []),
            ml1m=films.get(row, []),
            language=texts.get(row, []),
        )
        for row, spelling in spellings.items()
    ]
    show_rows(found)
    record: dict[str, Any] = {"machine": machine(), "updates": updates, "ml1m_epochs": ml1m_epochs}
    record |= {"language_tokens": language_tokens, "rows": [asdict(one) for one in found]}
    write_whole(out / "literal.json", json.dumps(record, indent=1).encode())
    print(f"wrote {out}/literal.json")


def _mqar(
    spellings: dict[str, str], seeds: int, updates: int, pairs: int, dim: int, processes: int, out: Path
) -> dict[str, list[float]]:
    training = replace(TRAINING, steps=updates)
    jobs = {
        (row, seed): Recall(mixer=spelling, dim=dim, pairs=pairs, seed=seed, heads=HEADS, length=32, training=training)
        for seed in range(seeds)
        for row, spelling in spellings.items()
    }
    points = run_jobs(list(jobs.values()), out, processes)
    return {row: [points[jobs[row, seed]].accuracy for seed in range(seeds)] for row in spellings}


def _ml1m(
    spellings: dict[str, str], seeds: int, epochs: int, processes: int, out: Path, folder: Path | None
) -> dict[str, list[float | None]]:
    config = recipe(epochs=epochs)
    configs = {spelling: variant(config, spelling) for spelling in spellings.values()}
    divided = split(load("ml-1m", Reading(folder=folder)), config.protocol)
    rows = {row.name: row for row in compare_on(divided, config, configs, seeds, out, processes=processes)}
    return {
        row: [run["ndcg@10"] for run in rows[spelling].runs] + [None] * len(rows[spelling].failures)
        for row, spelling in spellings.items()
    }


def _language(spellings: dict[str, str], seeds: int, tokens: int, processes: int, out: Path) -> dict[str, list[float]]:
    # the column is of validation: two looks at it, and next to nothing of the texts that are measured at the end
    settings = StudySettings(tokens=tokens, rounds=2, characters=4_000)
    study = Study(seeds=seeds, settings=settings, processes=processes, out=out)
    # the reading of the equation, like every other row: `prism` alone would be the study's, with a base write
    names = {row: "prism:base_write=false" if text == "prism" else text for row, text in spellings.items()}
    runs = run_study(tuple(names.values()), study)
    return {row: [runs[name, seed].metrics["valid"] for seed in range(seeds)] for row, name in names.items()}


def show_rows(found: list[Measured]) -> None:
    """Prints the table: one row per reading, what it measured in columns."""
    columns = ["", *(f"‖S‖, T = {length:,}" for length in LENGTHS), "MQAR", "ML-1M NDCG@10", "language PPL"]
    cells = []
    for one in found:
        sizes = [f"{size:.3g}" for size in one.sizes]
        recalled = _in_cell([value or None for value in one.mqar], ".3f")
        texts = _in_cell([value if isfinite(value) else None for value in one.language], ".1f")
        cells.append([one.row, *sizes, recalled, _in_cell(one.ml1m, ".4f"), texts])
    note = "‖S_T‖ of an untrained layer on normal input, the median of three seeds; a figure for each seed; –: not run"
    show("what the paper does not print, one choice at a time", columns, cells, caption=note)


def _in_cell(values: list[float | None], form: str) -> str:
    return ", ".join("diverged" if value is None else f"{value:{form}}" for value in values) or "–"
