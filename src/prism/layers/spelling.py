"""The spelling of mixers in commands and configs: `name:field=value,field=value`, hybrids as a list of these.

`prism,prism,attention` is three mixers, `prism:steps=3,keys=shared,attention:heads=1` is two: after a comma, what has
its equals sign before any colon is one more field of the mixer before it, and all else is the next mixer. A name is
one of `prism list`, one that was registered, or `module:Class`. Mixers of a hybrid are repeated down the blocks.
A word without an equals sign right after a name's colon is a preset of that mixer, which sets several fields:
`prism:literal`, `prism:literal,steps=4`; a field that is given as well counts.
"""

from typing import Any, NamedTuple

from prism.config import option_value
from prism.errors import InputError, suggest
from prism.layers import MIXERS, mixer_config
from prism.layers.base.mixer import MixerConfig


class SpelledMixer(NamedTuple):
    """One mixer as it was written: its name, and the fields that were given, by a preset or one by one."""

    name: str
    fields: dict[str, Any]

    def config(self, **shared: Any) -> MixerConfig:
        """Its config; of what is `shared` it takes `heads` and what its config declares, unless they were given."""
        taken = ("heads", *MIXERS[self.name].Config.from_model)
        return mixer_config(self.name, **{name: shared[name] for name in shared if name in taken} | self.fields)


def read_mixers(text: str) -> list[SpelledMixer]:
    """The mixers that `text` lists."""
    found: list[SpelledMixer] = []
    for part in text.split(","):
        before, sign, value = part.partition("=")
        name, colon, field = before.rpartition(":") if sign else (before, ":", "")
        if colon:
            found.append(_named(name.strip()))
        if not found or not found[-1].name:
            raise InputError(f"mixer {text!r} lacks a name: write name:field=value,field=value")
        if sign and field.strip():
            found[-1].fields[field.strip()] = option_value(value.strip())
        elif sign:
            raise InputError(f"mixer {text!r}: {part!r} is not field=value")
    return found


def _named(text: str) -> SpelledMixer:
    """`name`, `name:preset`, `module:Class` or `module:Class:preset`."""
    name, colon, preset = text.rpartition(":")
    if not colon or (":" not in name and name not in MIXERS):
        return SpelledMixer(text, {})
    known = MIXERS[name].Config.presets
    if preset.strip() not in known:
        hint = suggest(preset.strip(), known) if known else f"{name} has no presets"
        raise InputError(f"mixer {text!r}: {preset!r} is neither field=value nor a preset: {hint}")
    return SpelledMixer(name, dict(known[preset.strip()]))


def spelled_mixer(text: str, **shared: Any) -> MixerConfig:
    """The config of a single mixer; see `SpelledMixer.config`."""
    first, *others = read_mixers(text)
    if others:
        raise InputError(f"mixer {text!r} is a hybrid, and one mixer is asked for here")
    return first.config(**shared)


def spelled_mixers(text: str, layers: int, **shared: Any) -> MixerConfig | tuple[MixerConfig, ...]:
    """One config for all of `layers` blocks, or of a hybrid one for each; see `SpelledMixer.config`."""
    configs = tuple(mixer.config(**shared) for mixer in read_mixers(text))
    if len(configs) == 1:
        return configs[0]
    return down_the_blocks(configs, layers, f"mixer {text!r}")


def with_options(text: str, *options: str) -> str:
    """The spelling of a mixer with more fields, each as field=value; where a field comes twice, the last counts."""
    if not options:
        return text
    return text + ("," if ":" in text else ":") + ",".join(options)


def down_the_blocks(many: tuple[Any, ...], layers: int, what: str) -> tuple[Any, ...]:
    """A list repeated until every block has its own; one that does not come out even is refused."""
    if not many or layers % len(many):
        raise InputError(f"{what} lists {len(many)} for {layers} layers: give {layers}, or as many as divide them")
    return many * (layers // len(many))
