"""RWKV-7's time mixing: S_t = S_{t-1} (diag(w) − κ̂ (a ⊙ κ̂)ᵀ) + v k̃ᵀ, every operand from a token and the one before.

The published network gives the values of its first layer to every later layer (its value residual, with a fourth
low-rank map as the gate). A mixer sees one layer's input only, so each of ours is the published first layer, whose
values are its own.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.config import Count
from prism.layers.base.mixer import Mixer, MixerConfig, State
from prism.layers.base.pace import GatedWrite, Pace
from prism.layers.base.parts import unit, wide
from prism.ops.gated.rule import gated_rule_flops


@dataclass(frozen=True, kw_only=True)
class RWKV7Config(MixerConfig):
    """RWKV-7's time mixing as published, without the value residual between layers."""

    decay_rank: Count = 64
    """Rank of the map to the decays w (at most dim)."""
    rate_rank: Count = 64
    """Rank of the map to the in-context learning rates a (at most dim)."""
    gate_rank: Count = 128
    """Rank of the map to the gate on the read (at most dim)."""


@final
class RWKV7(Mixer):
    """RWKV-7: a decay per channel, an erasure along κ̂ at a rate per channel, a bonus for the current token."""

    Config = RWKV7Config
    # How far the mix of a token with the one before bends along the channels: what the published first layer has.
    BENDS: ClassVar[dict[str, float]] = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}
    EPS: ClassVar[float] = 64e-5
    """Of the norm on the read."""

    def __init__(self, dim: int, config: RWKV7Config):
        super().__init__(dim)
        self.config = config
        self.size = config.head_size(dim, None, "heads to a divisor of dim")
        channel = torch.arange(dim) / dim
        self.shift = nn.Parameter(torch.stack([1 - channel**bend for bend in self.BENDS.values()]))
        self.receptance = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.decay = self._low_rank(config.decay_rank, nn.Tanh())
        # half-lives from three tokens to seven hundred
        self.decay_bias = nn.Parameter(torch.linspace(-6.5, -0.5, dim))
        self.rate = self._low_rank(config.rate_rank, nn.Identity())
        self.rate_bias = nn.Parameter(torch.zeros(dim))
        self.gate = self._low_rank(config.gate_rank, nn.Sigmoid())
        self.erase_scale = nn.Parameter(torch.full((dim,), 0.85))  # ξ
        self.replace_share = nn.Parameter(torch.ones(dim))  # α in k̃
        self.bonus = nn.Parameter(torch.zeros(config.heads, self.size))
        self.norm_scale = nn.Parameter(torch.ones(dim))
        self.norm_shift = nn.Parameter(torch.zeros(dim))
        self.out = nn.Linear(dim, dim, bias=False)

    def _low_rank(self, rank: int, between: nn.Module) -> nn.Sequential:
        rank = min(rank, self.dim)
        return nn.Sequential(nn.Linear(self.dim, rank, bias=False), between, nn.Linear(rank, self.dim, bias=False))

    def mix(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens D"], State]:
        """Shift, project, run the recurrence, normalise, add the bonus, gate."""
        last, S = (None, None) if state is None else state
        before, last = pace.previous(x, last)
        r, w, k, v, a, g = (x.unsqueeze(-2) + (before - x).unsqueeze(-2) * self.shift).unbind(-2)
        write = self.write(self.receptance(r), w, self.key(k), self.value(v), a)
        o, S = pace.run(write, S)
        o = F.layer_norm(o, (self.size,), eps=self.EPS).flatten(-2) * self.norm_scale + self.norm_shift
        weight = (write.q * write.k * self.bonus).sum(-1, keepdim=True)
        o = o + (weight * write.v).flatten(-2)
        return self.out(o * self.gate(g)), (last, S)

    def write(
        self,
        r: Float[Tensor, "*tokens D"],
        w: Float[Tensor, "*tokens D"],
        k: Float[Tensor, "*tokens D"],
        v: Float[Tensor, "*tokens D"],
        a: Float[Tensor, "*tokens D"],
    ) -> GatedWrite:
        """The operands of the recurrence, from r, k, v and the mixed tokens for w and a."""
        decay = -(torch.e**-0.5) * (wide(self.decay(w)) + wide(self.decay_bias)).sigmoid()
        rate = (self.rate(a) + self.rate_bias).sigmoid()
        direction = unit(self._heads(k * self.erase_scale))  # κ̂
        return GatedWrite(
            q=self._heads(r),
            k=self._heads(k * (1 + (rate - 1) * self.replace_share)),
            v=self._heads(v),
            log_alpha=self._heads(decay),
            find=direction,
            erase=self._heads(rate) * direction,
        )

    def _heads(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens H K"]:
        return x.unflatten(-1, (self.config.heads, self.size))

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The last token, and S."""
        return (self.dim,), (self.config.heads, self.size, self.size)

    def state_flops(self, length: int) -> int:
        """Decay, erase, one write and the read of each head."""
        return self.config.heads * gated_rule_flops(self.size, self.size, erases=True)
