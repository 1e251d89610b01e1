"""Transformer++'s attention: o_i = Σ_{j≤i} softmax_j(q_i·k_j / √d) v_j, rotary positions; its state is the cache."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from prism.config import FromOne
from prism.errors import InputError
from prism.layers.base.cached import Cached
from prism.layers.base.mixer import MixerConfig, State
from prism.layers.base.pace import Pace
from prism.ops.attention import causal_attention
from prism.ops.common.packing import read_bounds
from prism.ops.common.ragged import positions
from prism.ops.rotary import rotate


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(MixerConfig):
    """Softmax attention with rotary positions (Transformer++, with the backbone's SwiGLU)."""

    rotary_base: FromOne = 10000.0
    """Longest period of the rotary positions, in tokens, over 2π."""


@final
class Attention(Cached):
    """Transformer++ attention with rotary positions: memory and time per token grow with the sequence."""

    Config = AttentionConfig

    def __init__(self, dim: int, config: AttentionConfig):
        super().__init__(dim)
        self.config, self.H = config, config.heads
        self.K = self.V = config.head_size(dim, None, "heads to a divisor of dim")
        if self.K % 2:
            raise InputError(f"rotary positions need heads of even width, got {dim} / {config.heads} = {self.K}")
        self.project = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def mix(self, x: Float[Tensor, "B T D"], state: State | None, pace: Pace) -> tuple[Float[Tensor, "B T D"], State]:
        packing, past = self.opened(pace, state)
        B, T, _ = x.shape
        q, k, v = self.project(x).unflatten(-1, (3, self.H, self.K)).unbind(-3)
        before = None if past is None else past.lengths
        place = positions(B, T, read_bounds(packing, B, T), before, x.device)
        q, k = (rotate(y, place, self.config.rotary_base) for y in (q, k))
        o, past = causal_attention(q, k, v, past=past, cu_seqlens=packing)
        return self.out(o.flatten(-2)), (*past.kept, past.lengths)
