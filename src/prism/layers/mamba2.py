"""Mamba-2: S_t = e^{−Δ e^A} S_{t-1} + Δ x Bᵀ, y = S C + D x, out(RMSNorm(y ⊙ SiLU(z))); B and C shared by the heads."""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.config import Count
from prism.layers.base.mixer import ConvConfig, Mixer, State
from prism.layers.base.pace import Pace, Write
from prism.layers.base.parts import DecayRate, ShortConv
from prism.ops.delta.rule import delta_rule_flops


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(ConvConfig):
    """Mamba-2 as published, with one group of B and C."""

    expand: Count = 2
    """Inner width as a multiple of the model's; a head has an even share of it (published: 64)."""
    state: Count = 128
    """Width of B and C: the columns of a head's state."""


@final
class Mamba2(Mixer):
    """Mamba-2: the state-space dual form, a scalar decay per head and nothing erased."""

    Config = Mamba2Config
    splits = True

    def __init__(self, dim: int, config: Mamba2Config):
        super().__init__(dim)
        self.config, H, inner = config, config.heads, config.expand * dim
        self.V = config.head_size(inner, None, "heads to a divisor of expand · dim")
        self.sizes = [inner, inner + 2 * config.state, H]
        self.project = nn.Linear(dim, sum(self.sizes), bias=False)
        self.conv = ShortConv(self.sizes[1], config.conv_size, bias=True)
        self.decay = DecayRate(H)
        self.skip = nn.Parameter(torch.ones(H))
        self.norm = nn.RMSNorm(inner, eps=1e-5)
        self.out = nn.Linear(inner, dim, bias=False)

    def mix(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens D"], State]:
        """Project, convolve, run the recurrence, gate, normalise, project out."""
        history, S = state or (None, None)
        gate, mixed, step = self.project(x).split(self.sizes, -1)
        mixed, history = pace.conv(self.conv, mixed, history)
        write = self.write(mixed, step)
        o, S = pace.run(write, S)
        y = (o + self.skip.unsqueeze(-1) * write.v).flatten(-2)
        return self.out(self.norm(y * F.silu(gate))), (history, S)

    def write(self, mixed: Float[Tensor, "*tokens E"], step: Float[Tensor, "*tokens H"]) -> Write:
        """q = C, k = B, v = x, β = Δ."""
        H, K = self.config.heads, self.config.state
        v, k, q = mixed.split([H * self.V, K, K], -1)
        k, q = (y.unsqueeze(-2).expand(*y.shape[:-1], H, K) for y in (k, q))
        beta = self.decay.step(step)
        return Write(
            q,
            k,
            v.unflatten(-1, (H, self.V)),
            beta.to(v.dtype),
            log_alpha=self.decay(step),
            erase=torch.zeros_like(beta),
        )

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs, and S."""
        return self.conv.state_shape(), (self.config.heads, self.V, self.config.state)

    def state_flops(self, length: int) -> int:
        """Decay, one write and the read of each head."""
        return self.config.heads * delta_rule_flops(1, self.config.state, self.V, erasures=0)
