"""Equal parameters for different mixers: the SwiGLU takes up what a mixer has more or less."""

import torch

from prism.errors import InputError
from prism.layers.base.mixer import MixerConfig


def matched_ffn(mixer: MixerConfig, like: MixerConfig, *, dim: int, ffn: int, multiple: int = 1) -> int:
    """The SwiGLU's hidden width with which a block of `mixer` has the parameters of one of `like` and width `ffn`.

    Args:
        mixer: Of the block whose width is asked for.
        like: Of the block to be equal to.
        dim: Width of both models.
        ffn: Hidden width of the SwiGLU beside `like`.
        multiple: What the width changes by, for products of a convenient size.
    """
    spare = _parameters(like, dim) - _parameters(mixer, dim)
    hidden = ffn + round(spare / (3 * dim * multiple)) * multiple  # a hidden unit has three weights per channel
    if hidden < 0:
        raise InputError(f"{mixer} has more parameters than {like} with a SwiGLU of {ffn}: give it a wider one")
    return hidden


def _parameters(mixer: MixerConfig, dim: int) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in mixer.build(dim).parameters())
