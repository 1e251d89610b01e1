"""`prism bench decode`: one token at a time after contexts of different length."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from prism.bench.measure import Job, Measurement, in_turns, summarise, threads
from prism.bench.model import models
from prism.bench.report import Claim, show_claims, show_measurements, write_json, write_plot
from prism.config import at_least
from prism.layers.base.mixer import State
from prism.models.backbone import Backbone


def jobs(mixers: tuple[str, ...], dim: int, layers: int, heads: int, context: int, tokens: int) -> dict[str, Job]:
    """`tokens` further tokens after `context`, for each model."""
    made: dict[str, Job] = {}
    for name, config in models(mixers, dim, layers, heads).items():
        torch.manual_seed(0)
        backbone = replace(config, dropout=0.0).build().eval()
        with torch.no_grad():
            _, state = backbone(torch.randn(1, context, dim))
        made[name] = partial(_decode, backbone, torch.randn(tokens, 1, dim), state)
    return made


def _decode(backbone: Backbone, x: Tensor, state: tuple[State, ...]) -> None:
    with torch.no_grad():
        for x_t in x:
            _, state = backbone.step(x_t, state)


def decode(
    contexts: tuple[int, ...] = (128, 1024, 8192),
    mixers: tuple[str, ...] = ("prism", "gated-deltanet", "mamba2", "attention"),
    dim: int = 256,
    layers: int = 2,
    heads: int = 4,
    tokens: int = 64,
    num_threads: int = 1,
    repeats: int = 15,
    out: Path = Path("bench-decode"),
) -> None:
    """Decoding speed over the length of the context: flat for linear mixers, falling for attention.

    Args:
        contexts: Tokens read before decoding begins.
        mixers: Names from `prism list`, with fields after a colon: prism:steps=4; hybrids: prism,attention.
        dim: Model width.
        layers: Blocks.
        heads: Heads of every mixer.
        tokens: Tokens decoded in one run.
        num_threads: Torch threads.
        repeats: Runs of each, taken in turns.
        out: Where results go: OUT.json and OUT.png.
    """
    at_least("contexts", min(contexts, default=0), 1)
    with threads(num_threads):
        every = {(name, T): job for T in contexts for name, job in jobs(mixers, dim, layers, heads, T, tokens).items()}
        # all contexts in one set of turns: the ratio between them is what is asked for
        seconds = in_turns({f"{name} {T}": job for (name, T), job in every.items()}, repeats)
    rows = [
        Measurement(
            system=name, work="decode", tokens=tokens, size={"B": 1, "T": T, "D": dim, "layers": layers},
            **summarise(seconds[f"{name} {T}"]),
        )
        for name, T in every
    ]  # fmt: skip
    show_measurements(rows, f"decoding, tokens per second after T tokens: D={dim}, {layers} layers")
    first, last = min(contexts), max(contexts)
    # the best of the runs: what else the machine does only adds, and the ratio is near 1
    speed = {(row.system, row.size["T"]): row.tokens / row.fastest for row in rows}
    claims = [
        Claim(
            text=f"{name}: speed after {last:,} / after {first:,}",
            measured=speed[name, last] / speed[name, first],
            least=0.95 if name == "prism" else None,
        )
        for name in mixers
    ]
    show_claims(claims)
    write_json(out.with_suffix(".json"), {"benchmark": "decode", "threads": num_threads}, rows, claims)
    write_plot(out.with_suffix(".png"), {"decode": rows}, f"Decoding, D={dim}, {layers} layers")
    print(f"wrote {out.with_suffix('.json')} and {out.with_suffix('.png')}")
