"""The Hugging Face config: any mixer by name, with its own fields; one for all blocks, or a hybrid."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any, no_type_check

from transformers import PretrainedConfig

from prism.config import at_least
from prism.errors import InputError
from prism.files import write_whole
from prism.layers import mixer_config
from prism.layers.base.mixer import MixerConfig
from prism.layers.spelling import down_the_blocks, read_mixers
from prism.models.backbone import BackboneConfig

# What a saved model has in place of a copy of this package.
SHIM = "modeling_prism_sequence"
SHIM_CLASSES = {
    "AutoConfig": "PrismSequenceConfig",
    "AutoModel": "PrismSequenceModel",
    "AutoModelForCausalLM": "PrismSequenceForCausalLM",
}
SHIM_CODE = f'''"""The code of this model is the package prism-sequence: pip install 'prism-sequence[lm]'."""

try:
    from prism.lm.hf.model import {", ".join(SHIM_CLASSES.values())}
except ImportError as error:
    raise ImportError("this model needs prism: pip install 'prism-sequence[lm]'") from error

__all__ = {list(SHIM_CLASSES.values())}
'''


@no_type_check  # the library takes more than the fields, which the tests' check of dataclasses would refuse
class PrismSequenceConfig(PretrainedConfig):
    """A causal language model around any mixers.

    `mixer` is spelled as on the command line (`prism:steps=3`, `prism,prism,attention`), or is a list of such, repeated
    down the blocks; `mixer_fields` are fields that all of them take where the spelling does not say, or a list of such.
    """

    model_type = "prism-sequence"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (the library's own attribute is a list)

    vocab_size: int = 32000
    hidden_size: int = 768
    num_hidden_layers: int = 12
    intermediate_size: int | None = None
    mixer: str | list[str] = "prism"
    mixer_fields: dict[str, Any] | list[dict[str, Any]] | None = None
    positions: int = 0
    dropout: float = 0.0
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        # the library keeps any name it does not know: a misspelt field would silently do nothing
        for name in kwargs:
            meant = get_close_matches(name, list(PrismSequenceConfig.__annotations__), n=1, cutoff=0.8)
            if meant:
                raise InputError(f"the model's config has no field {name!r}: did you mean {meant[0]!r}?")
        at_least("vocab_size", self.vocab_size, 1)
        self.backbone()
        super().__post_init__(**kwargs)

    @property
    def mixers(self) -> tuple[MixerConfig, ...]:
        texts = [self.mixer] if isinstance(self.mixer, str) else self.mixer
        spelled = self._each("mixer", [mixer for text in texts for mixer in read_mixers(text)])
        fields = self._each("mixer_fields", self.mixer_fields or {})
        return tuple(mixer_config(mixer.name, **own | mixer.fields) for mixer, own in zip(spelled, fields, strict=True))

    def backbone(self) -> BackboneConfig:
        """The blocks, as this package configures them."""
        at_least("num_hidden_layers", self.num_hidden_layers, 1)
        return BackboneConfig(
            dim=self.hidden_size,
            layers=self.num_hidden_layers,
            mixer=self.mixers,
            ffn=self.intermediate_size,
            positions=self.positions,
            dropout=self.dropout,
        )

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Writes the config, and beside it the file by which a stranger's `trust_remote_code=True` finds this code."""
        write_whole(Path(save_directory) / f"{SHIM}.py", SHIM_CODE.encode())
        self.auto_map = {name: f"{SHIM}.{made}" for name, made in SHIM_CLASSES.items()}
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Nothing: the library would copy this package's files beside the weights, and the file above names them."""

    def _each(self, name: str, value: Any) -> tuple[Any, ...]:
        many = tuple(value) if isinstance(value, list | tuple) else (value,)
        return down_the_blocks(many, self.num_hidden_layers, name)
