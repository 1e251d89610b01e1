"""The paper's language models at ~130M parameters, its ablation of depth and width as fields, and what each costs."""

from dataclasses import dataclass
from typing import Any

import torch

from prism.config import one_of, positive
from prism.errors import InputError
from prism.layers import mixer_config
from prism.layers.spelling import read_mixers
from prism.lm.hf.config import PrismSequenceConfig
from prism.lm.hf.model import PrismSequenceForCausalLM
from prism.machine import matmul_rate, pick_device
from prism.models.backbone import Backbone
from prism.models.matching import matched_ffn
from prism.printed import PARAMETERS


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What all models of a table share."""

    dim: int
    layers: int
    heads: int
    vocabulary: int
    ffn: int
    """Hidden width of Gated DeltaNet's SwiGLU; the others' takes up what their mixer has more or less."""
    solver_rank: int = 128
    """Rank of PRISM's maps to gains and directions."""


# The paper prints parameter counts, not sizes: these give Gated DeltaNet 132.21M where the paper has 132.03M, and
# PGDN's two more numbers per head and token the 0.13M that the paper's PGDN has more.
PAPER = Scale(dim=768, layers=14, heads=6, vocabulary=32000, ffn=2048)
# L = 2 solver steps after a base write, as the paper's ablation describes its language model.
FULL: dict[str, Any] = {"steps": 2, "base_write": True}
ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("prism", FULL),
    "shared keys": ("prism", FULL | {"keys": "shared"}),
    "base keys": ("prism", FULL | {"keys": "base"}),
    "no residual": ("prism", FULL | {"residual": "none"}),
    "single step": ("prism", FULL | {"steps": 1}),
    "gated-deltanet": ("gated-deltanet", {}),
}


def language_model(name: str, scale: Scale = PAPER, *, equal: bool = False) -> PrismSequenceConfig:
    """One of the paper's five models.

    Args:
        name: A key of `PARAMETERS`.
        scale: Its size.
        equal: Give PRISM too the parameters of Gated DeltaNet, by a narrower SwiGLU; the paper's has 4.6 % more.
    """
    one_of("name", name, tuple(PARAMETERS))
    return _config(name, FULL if name == "prism" else {}, scale, match=equal or name != "prism")


def spelled_model(text: str, scale: Scale = PAPER, *, equal: bool = False) -> PrismSequenceConfig:
    """Any other mixer as it is spelled, `prism:literal` for one, beside the paper's models."""
    mixer = read_mixers(text)
    if len(mixer) > 1:
        raise InputError(f"model {text!r} is a hybrid, and one mixer is asked for here")
    return _config(mixer[0].name, mixer[0].fields, scale, match=equal)


def ablation(name: str, scale: Scale = PAPER, *, equal: bool = False) -> PrismSequenceConfig:
    """One row of the paper's ablation: a key of `ABLATIONS`."""
    one_of("name", name, tuple(ABLATIONS))
    mixer, fields = ABLATIONS[name]
    return _config(mixer, fields, scale, match=equal)


def _config(mixer: str, fields: dict[str, Any], scale: Scale, *, match: bool) -> PrismSequenceConfig:
    rank = {"solver_rank": scale.solver_rank} if mixer == "prism" else {}
    fields = {"heads": scale.heads, **rank, **fields}
    ffn = scale.ffn
    if match:
        like = mixer_config("gated-deltanet", heads=scale.heads)
        ffn = matched_ffn(mixer_config(mixer, **fields), like, dim=scale.dim, ffn=ffn, multiple=16)
    return PrismSequenceConfig(
        vocab_size=scale.vocabulary,
        hidden_size=scale.dim,
        num_hidden_layers=scale.layers,
        intermediate_size=ffn,
        mixer=mixer,
        mixer_fields=fields,
    )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a model takes to train and to run."""

    parameters: int
    flops_per_token: int
    """Forward, after half of the context; training takes three times as much."""
    training_bytes: int
    """Weights, gradients and AdamW's two moments in float32, without activations."""
    activation_bytes: int
    """One sequence's activations where every block is recomputed: a block's input each, and the logits."""
    state_bytes: int
    """What `generate` remembers of one sequence after the context, in float32."""
    seconds: float
    """To train on the tokens, at the rate given."""

    def __str__(self) -> str:
        return (
            f"{self.parameters / 1e6:.2f}M parameters · {self.flops_per_token / 1e6:,.1f} Mflop per token forward · "
            f"{_bytes(self.training_bytes)} of weights and optimiser + {_bytes(self.activation_bytes)} per sequence · "
            f"state {_bytes(self.state_bytes)} · expected {duration(self.seconds)} of training"
        )


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count / 2**10:.1f} KiB"


def cost(config: PrismSequenceConfig, *, tokens: int = 2 * 10**9, context: int = 2048, rate: float) -> Cost:
    """Counts, not measurements; `rate` is in floating-point operations per second (see `matmul_rate`)."""
    with torch.device("meta"):
        model = PrismSequenceForCausalLM(config)
    backbone: Backbone = model.model.backbone
    flops = backbone.flops(context // 2) + 2 * config.vocab_size * config.hidden_size
    parameters = model.num_parameters()
    return Cost(
        parameters=parameters,
        flops_per_token=flops,
        training_bytes=16 * parameters,
        activation_bytes=4 * context * (config.num_hidden_layers * config.hidden_size + config.vocab_size),
        state_bytes=4 * backbone.state_size(context),
        seconds=3 * flops * tokens / rate,
    )


# Of a plain product's rate, what training may expect.
USED = 0.4


def duration(seconds: float) -> str:
    """Seconds in the largest unit of which there is at least one."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} seconds"


def language_recipes(tokens: int = 2 * 10**9, context: int = 2048, device: str = "cpu") -> None:
    """The paper's language models: parameters beside the paper's, flops, memory, expected time on this machine.

    Args:
        tokens: Of training (the paper: 2 billion).
        context: Tokens of a sequence.
        device: Whose speed the expected time is for.
    """
    positive(tokens=tokens, context=context)
    peak = matmul_rate(str(pick_device(device)))
    rate = USED * peak
    print(f"expected time: 40 % of the {peak / 1e9:,.0f} Gflop/s of a plain product on {device}, {tokens:,} tokens")
    for name, printed in PARAMETERS.items():
        print(f"{name} (paper {printed:.2f}M): {cost(language_model(name), tokens=tokens, context=context, rate=rate)}")
    for name in ABLATIONS:
        print(f"ablation {name}: {cost(ablation(name), tokens=tokens, context=context, rate=rate)}")
