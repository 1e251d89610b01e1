"""How large a language model is and what it is trained on: asked for by `prism lm train` and the language study."""

from dataclasses import dataclass
from typing import Annotated

from prism.config import Checked, Count, least
from prism.lm.data.tokenizer import SMALLEST


@dataclass(frozen=True, kw_only=True)
class Sizes(Checked):
    """Of a model, and of its training."""

    dim: Count = 128
    """Width."""
    layers: Count = 4
    """Blocks."""
    heads: Count = 4
    """Heads of each mixer."""
    vocabulary: Annotated[int, least(SMALLEST)] = 4096
    """Tokens of the tokenizer, where one is trained."""
    length: Count = 256
    """Tokens of a window."""
    batch: Count = 16
    """Windows of a batch."""
    tokens: Count = 1_000_000
    """To train on, in equal rounds with an evaluation after each."""
