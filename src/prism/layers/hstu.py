"""HSTU: U,V,Q,K = SiLU(W LN(X)), A = SiLU(QKᵀ + b_pos[i−j] + b_time[bucket(t_{i+1} − t_j)])/N, X + W'(LN(AV) ⊙ U)."""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.config import Count, Fraction, Natural
from prism.layers.base.cached import Cached
from prism.layers.base.dropout import Dropout
from prism.layers.base.mixer import GROWS, HeadSizesConfig, State
from prism.layers.base.pace import Pace
from prism.ops.attention import Bias, pointwise_attention


@dataclass(frozen=True, kw_only=True)
class HstuConfig(HeadSizesConfig):
    """HSTU as published."""

    from_model = ("dropout", "max_length")

    max_length: Count = 256
    """N: distances beyond it share one bias, and attention is divided by it, whatever the length of a sequence."""
    time_buckets: Natural = 128
    """The largest bucket of the time between events."""
    dropout: Fraction = 0.0
    """Rate of dropout on what the block adds, before its last map (published: 0.2 on ML-1M)."""


@final
class Hstu(Cached):
    """HSTU's block: attention without a softmax, gated, with biases by distance and by time; no feed-forward."""

    Config = HstuConfig
    whole_block = True
    takes_times = True

    def __init__(self, dim: int, config: HstuConfig):
        super().__init__(dim)
        self.config, self.H = config, config.heads
        self.K, self.V = config.head_sizes(dim)
        keys, values = self.H * self.K, self.H * self.V
        self.sizes = [values, values, keys, keys]
        self.project = nn.Linear(dim, sum(self.sizes), bias=False)
        self.place_bias = nn.Parameter(0.02 * torch.randn(config.max_length))
        self.time_bias = nn.Parameter(0.02 * torch.randn(config.time_buckets + 1))
        self.dropout = Dropout(config.dropout)
        self.merge = nn.Linear(values, dim)

    def mix(
        self,
        x: Float[Tensor, "B T D"],
        state: State | None,
        pace: Pace,
        times: Int[Tensor, "B T 2"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], State]:
        """Whole sequences; without times, the bias is by distance alone."""
        packing, past = self.opened(pace, state)
        projected = F.silu(self.project(F.layer_norm(x, [self.dim], eps=1e-6)))
        u, v, q, k = projected.split(self.sizes, -1)
        o, past = pointwise_attention(
            q.unflatten(-1, (self.H, self.K)),
            k.unflatten(-1, (self.H, self.K)),
            v.unflatten(-1, (self.H, self.V)),
            Bias(self.place_bias, self.time_bias),
            1 / self.config.max_length,
            times=times,
            past=past,
            cu_seqlens=packing,
        )
        read = F.layer_norm(o.flatten(-2), [u.shape[-1]], eps=1e-6)
        return x + self.merge(self.dropout(read * u)), (*past.kept, past.lengths)

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Keys, values, when they happened, and how many there are."""
        keys, values, count = super().state_shapes()
        return keys, values, (GROWS,), count
