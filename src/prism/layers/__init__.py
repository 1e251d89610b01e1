"""Sequence mixers: PRISM and every system it is compared against, under one contract (`base/mixer.py`)."""

from typing import TYPE_CHECKING, Any

from prism.registry import OpenRegistry

if TYPE_CHECKING:
    from prism.layers.base.mixer import Mixer, MixerConfig

MIXERS: "OpenRegistry[Mixer]" = OpenRegistry(
    "mixer",
    {
        "prism": "prism.layers.prism.mixer:Prism",
        "linear-attention": "prism.layers.linear_attention:LinearAttention",
        "gla": "prism.layers.gla:GatedLinearAttention",
        "gsa": "prism.layers.gsa:GatedSlotAttention",
        "mom": "prism.layers.mom:MixtureOfMemories",
        "mamba2": "prism.layers.mamba2:Mamba2",
        "deltanet": "prism.layers.deltanet:DeltaNet",
        "gated-deltanet": "prism.layers.deltanet:GatedDeltaNet",
        "deltaproduct": "prism.layers.deltaproduct:DeltaProduct",
        "efla": "prism.layers.efla:Efla",
        "pgdn": "prism.layers.pgdn:Pgdn",
        "rwkv7": "prism.layers.rwkv7:RWKV7",
        "ttt-linear": "prism.layers.ttt:TTTLinear",
        "ttt-mlp": "prism.layers.ttt:TTTMLP",
        "titans": "prism.layers.titans:Titans",
        "atlas": "prism.layers.atlas:Atlas",
        "attention": "prism.layers.attention:Attention",
        "sasrec": "prism.layers.sasrec:Sasrec",
        "hstu": "prism.layers.hstu:Hstu",
        "prism-mom": "prism.layers.mom:PrismMixtureOfMemories",
    },
    base="prism.layers.base.mixer:Mixer",
    group="prism.mixers",
)


def mixer_config(name: str, **fields: Any) -> "MixerConfig":
    """The config of the mixer called `name` (or `module:Class`), its other fields at their defaults."""
    from prism.config import from_fields

    return from_fields(MIXERS[name].Config, fields, where=f"mixer {name!r}")


__all__ = ["MIXERS", "mixer_config"]
