"""`prism bench decode`: one token at a time after contexts of different length, beside transformers' Llama."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prism.bench.measure import Job, Measurement, in_turns, summarise, threads
from prism.bench.model import models
from prism.bench.report import Claim, check_out, leave, show_measurements
from prism.config import positive, some
from prism.layers.base.mixer import State
from prism.models.backbone import Backbone

OURS, LLAMA, MAPS = "prism in transformers", "llama in transformers", "prism's linear maps alone"


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


def linear_maps(dim: int, layers: int, heads: int, tokens: int) -> Job:
    """PyTorch's products of one token with every linear map of the model, and nothing else: what cannot be saved."""
    config = models(("prism",), dim, layers, heads)["prism"]
    maps = [module for module in config.build().modules() if isinstance(module, nn.Linear)]
    pairs = [(one.weight.detach(), torch.randn(1, one.in_features)) for one in maps]

    def run() -> None:
        with torch.no_grad():
            for _ in range(tokens):
                for weight, x in pairs:
                    F.linear(x, weight)

    return run


def transformers_jobs(dim: int, layers: int, heads: int, context: int, tokens: int) -> dict[str, Job]:
    """PRISM and Llama of the same width, depth and number of parameters, both as models of transformers."""
    from transformers import DynamicCache, LlamaConfig, LlamaModel

    from prism.lm.hf.cache import StateCache
    from prism.lm.hf.config import PrismSequenceConfig
    from prism.lm.hf.model import PrismSequenceModel

    hidden = {name: config.hidden for name, config in models(("prism", "attention"), dim, layers, heads).items()}
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": dim, "num_hidden_layers": layers}
    ours = PrismSequenceModel(
        PrismSequenceConfig(**sizes, intermediate_size=hidden["prism"], mixer_fields={"heads": heads})
    ).eval()
    llama = LlamaModel(
        LlamaConfig(
            **sizes, intermediate_size=hidden["attention"], num_attention_heads=heads, max_position_embeddings=1 << 15
        )
    ).eval()
    before, x = torch.randn(1, context, dim), torch.randn(tokens, 1, 1, dim)
    with torch.no_grad():
        states = ours(inputs_embeds=before, use_cache=True).past_key_values.states
        cache = llama(inputs_embeds=before, past_key_values=DynamicCache(), use_cache=True).past_key_values

    def start() -> Any:
        made = StateCache()
        made.keep(states, context)
        return made

    def cropped() -> Any:
        more = cache.get_seq_length() - context
        if more:
            cache.crop(-more)
        return cache

    return {OURS: partial(_decode_with, ours, x, start), LLAMA: partial(_decode_with, llama, x, cropped)}


def _decode_with(model: Any, x: Tensor, start: Any) -> None:
    with torch.no_grad():
        cache = start()
        for x_t in x:
            model(inputs_embeds=x_t, past_key_values=cache, use_cache=True)


def decode(
    contexts: tuple[int, ...] = (128, 1024, 8192),
    mixers: tuple[str, ...] = ("prism", "gated-deltanet", "mamba2", "attention"),
    dim: int = 256,
    layers: int = 4,
    heads: int = 4,
    tokens: int = 64,
    num_threads: int = 1,
    repeats: int = 15,
    llama: bool = True,
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
        llama: Also measure PRISM and Llama as models of transformers (pip install 'prism-sequence[lm]').
        out: Where results go: OUT.json and OUT.png.
    """
    some(mixers=mixers)
    positive(contexts=contexts, dim=dim, layers=layers, tokens=tokens, num_threads=num_threads, repeats=repeats)
    check_out(out)
    with threads(num_threads):
        every = {(name, T): job for T in contexts for name, job in jobs(mixers, dim, layers, heads, T, tokens).items()}
        if llama:
            for T in contexts:
                every |= {(n, T): job for n, job in transformers_jobs(dim, layers, heads, T, tokens).items()}
        every |= {(MAPS, T): linear_maps(dim, layers, heads, tokens) for T in contexts[:1]}
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
    apart = {drawn: [row for row in rows if (row.system != MAPS) == drawn] for drawn in (True, False)}
    claims, record = _claims(rows, mixers, contexts, llama), {"benchmark": "decode", "threads": num_threads}
    leave(out, record, {"decode": apart[True]}, claims, f"Decoding, D={dim}, {layers} layers", beside=apart[False])


def _claims(rows: list[Measurement], mixers: tuple[str, ...], contexts: tuple[int, ...], llama: bool) -> list[Claim]:
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
    if "prism" in mixers:
        text = "prism / what its linear maps alone would allow"
        claims.append(Claim(text=text, measured=speed["prism", first] / speed[MAPS, contexts[0]], least=0.5))
    if llama:
        for T in contexts:
            text = f"prism / llama after {T:,}, both in transformers"
            claims.append(Claim(text=text, measured=speed[OURS, T] / speed[LLAMA, T], least=1.5))
    return claims
