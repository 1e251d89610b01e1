"""Equal parameters for different mixers: the SwiGLU takes up what a mixer has more or less."""

from collections.abc import Callable

import torch
from torch import nn

from prism.errors import InputError
from prism.layers.base.mixer import MixerConfig

# Weights of a SwiGLU for each channel and hidden unit.
UNIT = 3


def matched_ffn(mixer: MixerConfig, like: MixerConfig, *, dim: int, ffn: int, multiple: int = 1) -> int:
    """The SwiGLU's hidden width with which a block of `mixer` has the parameters of one of `like` and width `ffn`.

    Args:
        mixer: Of the block whose width is asked for.
        like: Of the block to be equal to.
        dim: Width of both models.
        ffn: Hidden width of the SwiGLU beside `like`.
        multiple: What the width changes by, for products of a convenient size.
    """
    target = count_parameters(lambda: like.build(dim)) + UNIT * dim * ffn
    hidden = hidden_width(target, count_parameters(lambda: mixer.build(dim)), dim, multiple)
    if hidden < 0:
        raise InputError(f"{mixer} has more parameters than {like} with a SwiGLU of {ffn}: give it a wider one")
    return hidden


def hidden_width(target: int, rest: int, channels: int, multiple: int = 1) -> int:
    """Of SwiGLUs on so many channels: what makes the parameters, `rest` of them elsewhere, nearest to `target`."""
    return round((target - rest) / (UNIT * channels * multiple)) * multiple


def count_parameters(build: Callable[[], nn.Module]) -> int:
    """How many a model has, counted without memory for them."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in build().parameters())
