"""PGDN: Gated DeltaNet that erases along k and writes along k̃ = e^{−ln(c) s(P)} ⊙ k, P_t = a P_{t-1} + b k⊙k."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prism.config import at_least
from prism.layers.base.memory import Pace, Write
from prism.layers.base.parts import DecayRate, wide
from prism.layers.deltanet import GatedDeltaNet, GatedDeltaNetConfig
from prism.ops.delta.rule import delta_rule_flops


@dataclass(frozen=True, kw_only=True)
class PgdnConfig(GatedDeltaNetConfig):
    """Preconditioned Gated DeltaNet as published."""

    stretch: float = 1.5
    """Most by which a channel of the written key grows or shrinks; 1 is Gated DeltaNet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("stretch", self.stretch, 1)

    def _make(self, dim: int) -> "Pgdn":
        return Pgdn(dim, self)


class Pgdn(GatedDeltaNet):
    """Preconditioned Gated DeltaNet: channels that saw much energy lately are written less, quiet ones more."""

    Config = PgdnConfig
    config: PgdnConfig
    scalars = ("beta", "decay", "energy_rate", "energy_decay")

    def __init__(self, dim: int, config: PgdnConfig):
        super().__init__(dim, config)
        self.energy_decay = DecayRate(config.heads)
        self.centre = nn.Parameter(torch.full((config.heads,), -0.2))

    def remember(
        self,
        q: Float[Tensor, "*tokens H K"],
        k: Float[Tensor, "*tokens H K"],
        v: Float[Tensor, "*tokens H V"],
        part: dict[str, Tensor],
        memory: Sequence[Tensor | None],
        pace: Pace,
    ) -> tuple[Float[Tensor, "*tokens H V"], list[Tensor]]:
        """First the running energy of the keys, then the recurrence."""
        S, energy = memory
        write = self.write(q, k, v, part)
        k = write.k
        seen, energy = self._energy(k, part, energy, pace)
        # the first direction erases and writes nothing, the second writes
        keys = torch.stack([k, self._stretch(seen).to(k.dtype) * k], -2)
        values = torch.stack([torch.zeros_like(v), v], -2)
        beta = write.beta.unsqueeze(-1).expand(*write.beta.shape, 2)
        o, S = pace.delta_rule(write._replace(k=keys, v=values, beta=beta), S)
        return o, [S, energy]

    def _energy(
        self, k: Tensor, part: dict[str, Tensor], energy: Tensor | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens H K"], Float[Tensor, "N H K 1"]]:
        """P_t for every token: the recurrence with keys of width 1, which writes k⊙k and never erases."""
        squares, rate = wide(k).square(), wide(part["energy_rate"]).sigmoid()
        one = torch.ones_like(squares[..., :1])
        log_decay = self.energy_decay(part["energy_decay"])
        write = Write(one, one, squares, rate, log_decay, erase=torch.zeros_like(rate))
        return pace.delta_rule(write, energy)

    def _stretch(self, energy: Float[Tensor, "*tokens H K"]) -> Float[Tensor, "*tokens H K"]:
        """Within [1/c, c]: how much of each channel is written."""
        r = (energy + 1e-6).log() - wide(self.centre).unsqueeze(-1)
        return (-log(self.config.stretch) * r / (1 + r.abs())).exp()

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs, S, and P (a state with keys of width 1)."""
        return *super().state_shapes(), (self.config.heads, self.K, 1)

    def state_flops(self, length: int) -> int:
        """The recurrence with two directions, and P's."""
        energy = delta_rule_flops(1, 1, self.K, erases=False)
        return self.config.heads * (delta_rule_flops(2, self.K, self.V) + energy)
