"""Gated DeltaNet: S_t = α_t S_{t-1} (I − β k kᵀ) + β v kᵀ, each of q, k, v through a short convolution."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.config import at_least
from prism.layers.mixer import Mixer, MixerConfig, State
from prism.layers.parts import DecayRate, GatedRead, ShortConv, unit
from prism.ops import delta_rule, delta_rule_step
from prism.ops.delta import delta_rule_flops


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetConfig(MixerConfig):
    """Gated DeltaNet as published."""

    conv_size: int = 4
    """Window of the short convolutions, in tokens."""
    head_key: int | None = None
    """Width K of a head's keys; None: dim / heads."""
    head_value: int | None = None
    """Width V of a head's values; None: dim / heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("conv_size", self.conv_size, 1)

    def _make(self, dim: int) -> "GatedDeltaNet":
        return GatedDeltaNet(dim, self)


class GatedDeltaNet(Mixer):
    """The one-step, rank-1 delta rule with a decay a head."""

    Config = GatedDeltaNetConfig

    def __init__(self, dim: int, config: GatedDeltaNetConfig):
        super().__init__(dim)
        self.config, H = config, config.heads
        self.K = K = config.head_size(dim, config.head_key, "head_key")
        self.V = V = config.head_size(dim, config.head_value, "head_value")
        self.sizes = [2 * H * K + H * V, H * V, H, H]
        self.project = nn.Linear(dim, sum(self.sizes), bias=False)
        self.conv = ShortConv(self.sizes[0], config.conv_size)
        self.decay = DecayRate(H)
        self.read = GatedRead(V)
        self.out = nn.Linear(H * V, dim, bias=False)

    def mix(
        self, x: Float[Tensor, "B T D"], state: State | None, cu_seqlens: Int[Tensor, " limits"] | None
    ) -> tuple[Float[Tensor, "B T D"], State]:
        """Whole sequences."""
        history, S = (None, None) if state is None else state
        qkv, gate, beta, decay = self.project(x).split(self.sizes, -1)
        qkv, history = self.conv(qkv, history, cu_seqlens)
        o, S = delta_rule(
            *self._heads(qkv),
            beta.sigmoid(),
            self.decay(decay),
            initial_state=S,
            output_final_state=True,
            cu_seqlens=cu_seqlens,
        )
        assert S is not None
        return self.out(self.read(o, gate)), (history, S)

    def mix_token(self, x: Float[Tensor, "N D"], state: State | None) -> tuple[Float[Tensor, "N D"], State]:
        """One token."""
        history, S = (None, None) if state is None else state
        qkv, gate, beta, decay = self.project(x).split(self.sizes, -1)
        qkv, history = self.conv.step(qkv, history)
        o, S = delta_rule_step(*self._heads(qkv), beta.sigmoid(), self.decay(decay), state=S)
        return self.out(self.read(o, gate)), (history, S)

    def _heads(self, qkv: Float[Tensor, "*tokens E"]) -> tuple[Tensor, Tensor, Tensor]:
        H, K, V = self.config.heads, self.K, self.V
        q, k, v = qkv.split([H * K, H * K, H * V], -1)
        q, k = unit(torch.stack([q.unflatten(-1, (H, K)), k.unflatten(-1, (H, K))])).unbind()
        return q, k, v.unflatten(-1, (H, V))

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs, and S."""
        return self.conv.state_shape(), (self.config.heads, self.V, self.K)

    def state_flops(self, length: int) -> int:
        """Decay, erase, one write and the read of each head."""
        return self.config.heads * delta_rule_flops(1, self.K, self.V)
