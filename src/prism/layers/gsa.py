"""Gated slot attention: slots K̃ = diag(f) K̃ + (1−f) kᵀ, Ṽ = diag(f) Ṽ + (1−f) vᵀ; o = Ṽᵀ softmax(K̃ q)."""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.config import Count, FromOne
from prism.layers.base.mixer import HeadSizesConfig, Mixer, State
from prism.layers.base.pace import GatedWrite, Pace
from prism.layers.base.parts import wide
from prism.ops.gated.rule import gated_rule_flops


@dataclass(frozen=True, kw_only=True)
class GatedSlotAttentionConfig(HeadSizesConfig):
    """Gated slot attention as published."""

    slots: Count | None = None
    """m, slots per head; None: as many as a key has channels."""
    damping: FromOne = 8.0
    """τ in f = σ(·)^{1/τ}: the larger, the slower a slot forgets."""


@final
class GatedSlotAttention(Mixer):
    """Gated slot attention: a softmax over m slots, two passes of `gated_rule` whose key is 1 − f.

    The first reads K̃ q from the value side, one number per slot; the second reads Ṽᵀ with their softmax.
    """

    Config = GatedSlotAttentionConfig

    def __init__(self, dim: int, config: GatedSlotAttentionConfig):
        super().__init__(dim)
        self.config, H = config, config.heads
        self.K, self.V = K, V = config.head_sizes(dim)
        self.slots = m = config.slots or K
        self.sizes = [H * K, H * K, H * V, H * m]
        self.project = nn.Linear(dim, sum(self.sizes), bias=False)
        self.norm = nn.RMSNorm(H * V, eps=1e-5)
        self.out = nn.Linear(H * V, dim, bias=False)

    def mix(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens D"], State]:
        """Ask the slots' keys, then their values."""
        keys, values = (None, None) if state is None else state
        q, k, v, gate = (part.unflatten(-1, (self.config.heads, -1)) for part in self.project(x).split(self.sizes, -1))
        log_keep = F.logsigmoid(wide(gate)) / self.config.damping
        write = -torch.expm1(log_keep).to(x.dtype)  # 1 − f, without cancellation
        ask = GatedWrite(F.silu(q), write, F.silu(k), log_keep, side="value")
        scores, keys = pace.run(ask, keys)
        chosen = wide(scores).softmax(-1).to(x.dtype)
        o, values = pace.run(GatedWrite(chosen, write, F.silu(v), log_keep), values)
        return self.out(self.norm(F.silu(o.flatten(-2)))), (keys, values)

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The slots' keys K̃ᵀ and values Ṽᵀ."""
        H, m = self.config.heads, self.slots
        return (H, self.K, m), (H, self.V, m)

    def state_flops(self, length: int) -> int:
        """Decay, one write and the read of the keys and the values of each head's slots."""
        return self.config.heads * (gated_rule_flops(self.slots, self.K) + gated_rule_flops(self.slots, self.V))
