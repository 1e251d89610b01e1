"""PGDN: Gated DeltaNet that erases along k and writes along k̃ = e^{−ln(c) s(P)} ⊙ k, P_t = a P_{t-1} + b k⊙k."""

from dataclasses import dataclass
from math import log
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prism.config import FromOne
from prism.layers.base.memory import Memory, Project, Recall
from prism.layers.base.mixer import State
from prism.layers.base.pace import Pace, Write
from prism.layers.base.parts import DecayRate, wide
from prism.layers.deltanet import GatedDeltaNetConfig, build_convolved, convolved, delta_write
from prism.ops.delta.rule import delta_rule_flops


@dataclass(frozen=True, kw_only=True)
class PgdnConfig(GatedDeltaNetConfig):
    """Preconditioned Gated DeltaNet as published."""

    stretch: FromOne = 1.5
    """Most by which a channel of the written key grows or shrinks; 1 is Gated DeltaNet."""


@final
class Pgdn(Memory):
    """Preconditioned Gated DeltaNet: channels that saw much energy lately are written less, quiet ones more."""

    Config = PgdnConfig
    config: PgdnConfig

    def __init__(self, dim: int, config: PgdnConfig):
        super().__init__(dim)
        build_convolved(self, config, ("beta", "decay", "energy_rate", "energy_decay"), gated=True)
        self.decay = DecayRate(config.heads)
        self.energy_decay = DecayRate(config.heads)
        self.centre = nn.Parameter(torch.full((config.heads,), -0.2))

    def operands(self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace, project: Project) -> Recall:
        """Gated DeltaNet's, in two directions; the second from the running energy of the keys."""
        history, energy, S = self.opened(state)
        part, history = convolved(self, x, history, pace, project)
        write = delta_write(part)
        k, v = write.k, write.v
        seen, energy = self._energy(k, part, energy, pace)
        # the first direction erases and writes nothing, the second writes
        keys = torch.stack([k, self._stretch(seen).to(k.dtype) * k], -2)
        values = torch.stack([torch.zeros_like(v), v], -2)
        beta = write.beta.unsqueeze(-1).expand(*write.beta.shape, 2)
        write = Write(write.q, keys, values, beta, log_alpha=self.decay(part["decay"]))
        return Recall(write, part["gate"], S, (history, energy))

    def _energy(
        self, k: Tensor, part: dict[str, Tensor], energy: Tensor | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens H K"], Float[Tensor, "N H K 1"]]:
        """P_t for every token: the recurrence with keys of width 1, which writes k⊙k and never erases."""
        squares, rate = wide(k).square(), wide(part["energy_rate"]).sigmoid()
        one = torch.ones_like(squares[..., :1])
        log_decay = self.energy_decay(part["energy_decay"])
        write = Write(one, one, squares, rate, log_decay, erase=torch.zeros_like(rate))
        return pace.run(write, energy)

    def _stretch(self, energy: Float[Tensor, "*tokens H K"]) -> Float[Tensor, "*tokens H K"]:
        """Within [1/c, c]: how much of each channel is written."""
        r = (energy + 1e-6).log() - wide(self.centre).unsqueeze(-1)
        return (-log(self.config.stretch) * r / (1 + r.abs())).exp()

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs, P (a state with keys of width 1), and S."""
        history, S = super().state_shapes()
        return history, (self.config.heads, self.K, 1), S

    def state_flops(self, length: int) -> int:
        """The recurrence with two directions, and P's."""
        energy = delta_rule_flops(1, 1, self.K, erasures=0)
        return self.config.heads * (delta_rule_flops(2, self.K, self.V) + energy)
