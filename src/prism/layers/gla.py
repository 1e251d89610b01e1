"""Gated linear attention: S_t = S_{t-1} diag(α_t) + v kᵀ, α = σ(W₂ W₁ x + b)^{1/16} for each channel of the key."""

from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.config import Count, FromOne
from prism.layers.base.memory import Memory, Project, Recall
from prism.layers.base.mixer import HeadSizesConfig, State
from prism.layers.base.pace import GatedWrite, Pace
from prism.layers.base.parts import GatedRead, wide
from prism.ops.gated.rule import gated_rule_flops


@dataclass(frozen=True, kw_only=True)
class GatedLinearAttentionConfig(HeadSizesConfig):
    """Gated linear attention as published."""

    head_key: Count | None = None
    """Width K of a head's keys; None: half of dim / heads."""
    gate_rank: Count = 16
    """Rank of the map to the decays."""
    damping: FromOne = 16.0
    """τ in α = σ(·)^{1/τ}: the larger, the slower the state forgets."""


@final
class GatedLinearAttention(Memory):
    """Gated linear attention: accumulation with a decay per channel; no convolution, no erasure."""

    Config = GatedLinearAttentionConfig
    splits = False  # its decay is one per channel
    config: GatedLinearAttentionConfig

    def __init__(self, dim: int, config: GatedLinearAttentionConfig):
        super().__init__(dim)
        self.config, H = config, config.heads
        self.V = V = config.head_size(dim, config.head_value, "head_value")
        self.K = K = config.head_key or max(1, config.head_size(dim, None, "head_key") // 2)
        self.sizes = {"q": H * K, "k": H * K, "v": H * V, "low": config.gate_rank, "gate": H * V}
        self.project = nn.Linear(dim, sum(self.sizes.values()), bias=False)
        self.decay = nn.Linear(config.gate_rank, H * K)
        self.read = GatedRead(V)
        self.out = nn.Linear(H * V, dim, bias=False)

    def operands(self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace, project: Project) -> Recall:
        q, k, v, low, gate = project(x).split(list(self.sizes.values()), -1)
        H = self.config.heads
        write = GatedWrite(
            q=q.unflatten(-1, (H, self.K)),
            k=k.unflatten(-1, (H, self.K)),
            v=v.unflatten(-1, (H, self.V)),
            log_alpha=F.logsigmoid(wide(self.decay(low))).unflatten(-1, (H, self.K)) / self.config.damping,
            scale=self.K**-0.5,
        )
        return Recall(write, gate, None if state is None else state[0])

    def state_flops(self, length: int) -> int:
        """Decay, one write and the read of each head."""
        return self.config.heads * gated_rule_flops(self.K, self.V)
