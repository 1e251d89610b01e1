"""The cache of `generate`: one mixer state per block, and how many tokens they have seen; it grows only as they do."""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import Cache

from prism.layers.base.mixer import State


class StateCache(Cache):
    """What the blocks remember of each sequence. Empty until the first call."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.states: tuple[State, ...] | None = None
        self.seen = 0
        """Tokens so far, padding included: what `generate` takes off the front of its inputs."""

    def keep(self, states: tuple[State, ...], tokens: int) -> None:
        """Replaces the states by those after `tokens` more tokens."""
        self.states = states
        self.seen += tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """−1: there is no limit."""
        return -1

    def nbytes(self) -> int:
        """Memory of the states, in bytes."""
        return sum(part.nbytes for state in self.states or () for part in state)

    def reset(self) -> None:
        self.states, self.seen = None, 0

    def reorder_cache(self, beam_idx: Int[Tensor, " beams"]) -> None:
        """Row n becomes what row `beam_idx[n]` was."""
        self._each(lambda part: part.index_select(0, beam_idx.to(part.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._each(lambda part: part[indices.to(part.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda part: part.repeat_interleave(repeats, 0))

    def crop(self, tokens_to_remove: int) -> None:
        """Refuses: a recurrent state cannot be taken back."""
        if tokens_to_remove:
            raise NotImplementedError("a recurrent state cannot forget its last tokens: decode without an assistant")

    @property
    def batch_size(self) -> int:
        """Sequences held, −1 before the first call."""
        return -1 if self.states is None else len(self.states[0][0])

    @property
    def is_croppable(self) -> bool:
        """False: a recurrent state cannot be taken back."""
        return False

    @property
    def is_initialized(self) -> bool:
        return self.states is not None

    def __len__(self) -> int:
        return len(self.states or ())

    def __repr__(self) -> str:
        return f"StateCache(seen={self.seen}, bytes={self.nbytes()})"

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.states is not None:
            with torch.no_grad():
                self.states = tuple(tuple(change(part) for part in state) for state in self.states)
