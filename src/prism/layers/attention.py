"""Transformer++'s attention: o_i = Σ_{j≤i} softmax_j(q_i·k_j / √d) v_j, rotary positions; its state is the cache."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from prism.config import FromOne
from prism.errors import InputError
from prism.layers.base.mixer import GROWS, Mixer, MixerConfig, State
from prism.layers.base.pace import Pace, Sequences
from prism.ops.attention import Past, causal_attention
from prism.ops.common.packing import read_bounds
from prism.ops.common.ragged import positions
from prism.ops.rotary import rotate


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(MixerConfig):
    """Softmax attention with rotary positions (Transformer++, with the backbone's SwiGLU)."""

    rotary_base: FromOne = 10000.0
    """Longest period of the rotary positions, in tokens, over 2π."""


@final
class Attention(Mixer):
    """Transformer++ attention with rotary positions: memory and time per token grow with the sequence."""

    Config = AttentionConfig
    sequences_only = True

    def __init__(self, dim: int, config: AttentionConfig):
        super().__init__(dim)
        self.config = config
        self.size = config.head_size(dim, None, "heads to a divisor of dim")
        if self.size % 2:
            raise InputError(f"rotary positions need heads of even width, got {dim} / {config.heads} = {self.size}")
        self.project = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def mix(self, x: Float[Tensor, "B T D"], state: State | None, pace: Pace) -> tuple[Float[Tensor, "B T D"], State]:
        """Whole sequences."""
        assert isinstance(pace, Sequences)
        B, T, _ = x.shape
        past = None if state is None else Past(state[:2], state[2])
        q, k, v = self.project(x).unflatten(-1, (3, self.config.heads, self.size)).unbind(-3)
        before = None if past is None else past.lengths
        place = positions(B, T, read_bounds(pace.packing, B, T), before, x.device)
        q, k = (rotate(y, place, self.config.rotary_base) for y in (q, k))
        o, past = causal_attention(q, k, v, past=past, cu_seqlens=pace.packing)
        return self.out(o.flatten(-2)), (*past.kept, past.lengths)

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Keys, values, and how many there are."""
        head = (GROWS, self.config.heads, self.size)
        return head, head, ()

    def state_flops(self, length: int) -> int:
        """A product with each key and each value."""
        return 4 * self.dim * (length + 1)
