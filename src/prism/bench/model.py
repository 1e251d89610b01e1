"""`prism bench model`: training throughput of whole models of equal size, over sequence length × batch."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prism.bench.measure import Job, Measurement, measured
from prism.bench.report import Claim, check_out, leave, show_measurements
from prism.config import at_least, positive, some
from prism.errors import InputError
from prism.layers.base.initial import initialise
from prism.layers.spelling import spelled_mixers
from prism.models.backbone import BackboneConfig
from prism.models.matching import count_parameters, hidden_width

VOCABULARY = 1024
# TTT one token at a time, as the paper times it; the published mini-batches are `ttt-linear` itself.
SERIAL = "ttt-linear:mini_batch=1"
# It costs the same per token whatever the batch or length: a short piece tells its rate, though not its memory.
PIECE = 256
STUDY = (
    "prism", "gated-deltanet", "deltanet", "linear-attention", "gla", "gsa", "mom", "mamba2", "efla", "pgdn",
    "rwkv7", "attention", "ttt-linear", "ttt-mlp", "titans", "atlas", SERIAL,
)  # fmt: skip


class TokenModel(nn.Module):
    """Embedding, backbone, tied logits: the least that trains."""

    def __init__(self, config: BackboneConfig):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, config.dim)
        initialise(self.embedding)
        self.backbone = config.build()

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of predicting each next token."""
        y, _ = self.backbone(self.embedding(tokens[:, :-1]))
        return F.cross_entropy(F.linear(y, self.embedding.weight).flatten(0, 1), tokens[:, 1:].flatten())


def parameters(config: BackboneConfig) -> int:
    return count_parameters(config.build)


def of_size(config: BackboneConfig, target: int) -> BackboneConfig:
    """`config` with the SwiGLU as wide as makes the backbone's parameters nearest to `target`."""
    rest = parameters(replace(config, ffn=1))
    return replace(config, ffn=max(16, hidden_width(target, rest, config.dim * config.layers, multiple=8)))


def models(mixers: Sequence[str], dim: int, layers: int, heads: int) -> dict[str, BackboneConfig]:
    """One backbone per mixer, all as large as PRISM's."""

    def backbone(name: str) -> BackboneConfig:
        return BackboneConfig(dim=dim, layers=layers, mixer=spelled_mixers(name, layers, heads=heads))

    target = parameters(backbone("prism"))
    return {name: of_size(backbone(name), target) for name in mixers}


def jobs(mixers: Sequence[str], dim: int, layers: int, heads: int, batch: int, length: int) -> dict[str, Job]:
    """One training step (forward and backward) of each model."""
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (batch, length + 1))
    made: dict[str, Job] = {}
    for name, config in models(mixers, dim, layers, heads).items():
        torch.manual_seed(0)
        model = TokenModel(config)
        made[name] = partial(_step, model, tokens[:1, : PIECE + 1] if name == SERIAL else tokens)
    return made


def _step(model: TokenModel, tokens: Tensor) -> None:
    model.zero_grad()
    model(tokens).backward()


def model(
    sizes: tuple[tuple[int, int], ...] = ((512, 8), (2048, 2), (8192, 1)),
    mixers: tuple[str, ...] = STUDY,
    dim: int = 128,
    layers: int = 2,
    heads: int = 4,
    num_threads: int = 1,
    repeats: int = 3,
    memory: bool = True,
    out: Path = Path("bench-model"),
) -> None:
    """Training throughput and peak memory of whole models of equal size.

    Args:
        sizes: Pairs of sequence length and batch.
        mixers: Names from `prism list`, with fields after a colon (ttt-linear:mini_batch=1); hybrids: prism,attention.
        dim: Model width.
        layers: Blocks.
        heads: Heads of every mixer.
        num_threads: Torch threads.
        repeats: Steps of each, taken in turns; the median counts.
        memory: Also measure peak memory, in a process of its own.
        out: Where results go: OUT.json and OUT.png.
    """
    some(mixers=mixers)
    positive(num_threads=num_threads, repeats=repeats)
    check_out(out)
    for length, batch in sizes:
        at_least("length in sizes", length, 2)
        at_least("batch in sizes", batch, 1)
    if not sizes:
        raise InputError("sizes must name at least one pair of length and batch, e.g. --sizes 1024 8")
    counts = {name: parameters(config) for name, config in models(mixers, dim, layers, heads).items()}
    cases = [(mixers, dim, layers, heads, batch, length) for length, batch in sizes]
    found = measured(jobs, cases, repeats, num_threads=num_threads, memory=memory, patience=6.0)
    rows = [
        Measurement(
            system=name, work="training step", tokens=min(PIECE, length) if name == SERIAL else batch * length,
            size={"B": batch, "T": length, "D": dim, "layers": layers, "parameters": counts[name]},
            **of_job | ({"peak_bytes": None} if name == SERIAL else {}),
        )
        for (length, batch), fields in zip(sizes, found, strict=True)
        for name, of_job in fields.items()
    ]  # fmt: skip
    pairs = ", ".join(f"{length:,}×{batch}" for length, batch in sizes)
    show_measurements(
        rows, f"training, tokens per second at {pairs}: D={dim}, {layers} layers, {num_threads} thread(s)"
    )
    print("parameters without embedding: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))
    print(_crossing(rows))
    record, title = {"benchmark": "model", "threads": num_threads}, f"Whole models, D={dim}, {layers} layers, {pairs}"
    leave(out, record, {"training step": rows}, throughput_claims(rows), title)


def _crossing(rows: Sequence[Measurement]) -> str:
    """From which of the lengths on PRISM is faster than attention."""
    speed = {(row.system, row.size["T"]): row.tokens_per_second for row in rows}
    lengths = sorted({row.size["T"] for row in rows if row.system in ("prism", "attention")})
    slower = [T for T in lengths if speed.get(("prism", T), 0.0) < speed.get(("attention", T), 0.0)]
    if not {"prism", "attention"} <= {row.system for row in rows}:
        return "no crossing: it takes both prism and attention"
    later = [T for T in lengths if not slower or T > slower[-1]]
    return f"prism is faster than attention from T={later[0]:,} on" if later else "attention is faster at all lengths"


def throughput_claims(rows: Sequence[Measurement]) -> list[Claim]:
    """The three statements of the paper's efficiency section, as ratios of this run."""
    speed = {(row.system, row.size["T"]): row.tokens_per_second for row in rows}
    lengths = sorted({row.size["T"] for row in rows})
    claims: list[Claim] = []

    def ratio(text: str, top: str, bottom: str, T: int, **limit: float) -> None:
        if (top, T) in speed and (bottom, T) in speed:
            claims.append(Claim(text=f"{text}, T={T:,}", measured=speed[top, T] / speed[bottom, T], **limit))

    for T in lengths:
        ratio("gated-deltanet / prism (paper: overhead below 16 %)", "gated-deltanet", "prism", T, most=1.16)
    ratio("prism / attention (paper: below 1 at its shortest)", "prism", "attention", lengths[0])
    ratio("prism / attention (paper: 3 at its longest)", "prism", "attention", lengths[-1], least=1)
    for T in lengths:
        ratio("prism / TTT one token at a time (paper: 174)", "prism", SERIAL, T)
    return claims
