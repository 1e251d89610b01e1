"""Linear attention: S_t = S_{t-1} + v φ(k)ᵀ, o = S φ(q) / (z·φ(q)) with z the sum of φ(k) and φ = elu + 1."""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.layers.base.mixer import Mixer, MixerConfig, State
from prism.layers.base.pace import Pace, Write
from prism.ops.delta.rule import delta_rule_flops


@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig(MixerConfig):
    """Linear attention (the paper's LA and SLA): no decay, no erasure, rank 1."""

    normalise: bool = True
    """Divide by the sum of the weights, as published; otherwise an RMSNorm per head keeps the read bounded."""


@final
class LinearAttention(Mixer):
    """Linear attention: pure accumulation; the normaliser z is one more row of S, written with v = 1."""

    Config = LinearAttentionConfig
    splits = True

    def __init__(self, dim: int, config: LinearAttentionConfig):
        super().__init__(dim)
        self.config = config
        self.size = config.head_size(dim, None, "heads to a divisor of dim")
        self.project = nn.Linear(dim, 3 * dim, bias=False)
        self.norm = None if config.normalise else nn.RMSNorm(self.size, eps=1e-6)
        self.out = nn.Linear(dim, dim, bias=False)

    def mix(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens D"], State]:
        """Feature maps, one recurrence, the normaliser divided out."""
        q, k, v = self.project(x).unflatten(-1, (3, self.config.heads, self.size)).unbind(-3)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if self.norm is None:
            v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        one = torch.ones_like(v[..., 0])
        o, S = pace.run(Write(q, k, v, one, erase=torch.zeros_like(one)), None if state is None else state[0])
        # φ > 0, so the sum of weights is positive from the first token on
        o = o[..., :-1] / o[..., -1:] if self.norm is None else self.norm(o)
        return self.out(o.flatten(-2)), (S,)

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """S, with a row for z."""
        return ((self.config.heads, self.size + self.config.normalise, self.size),)

    def state_flops(self, length: int) -> int:
        """One write and the read of each head."""
        heads, V, K = self.state_shapes()[0]
        return heads * delta_rule_flops(1, K, V, erasures=0, decays=False)
