"""PRISM's second reading: S_t = α_t S_{t-1} (I − β k kᵀ) + β v kᵀ, as Gated DeltaNet has it, + Σ_l β^l δ^l k^lᵀ."""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prism.layers.base.memory import Memory, Project, Recall
from prism.layers.base.mixer import State
from prism.layers.base.pace import Pace, Write
from prism.layers.base.parts import DecayRate, ShortConv, unit
from prism.layers.deltanet import GatedDeltaNetConfig, build_convolved, convolved, delta_write
from prism.layers.prism.fields import PrismFields
from prism.layers.prism.solver import corrections, named, repeat_last, solver_sizes
from prism.ops.delta.rule import delta_rule_flops

# Logit of a step's strength at first, β ≈ 1/1100. Only the base key is erased, so what the steps write piles up over
# the thousand tokens that a slow head remembers. Validation perplexity of a 2.7M language model after 400k tokens,
# equal parameters, one seed, from a logit of 0 / −3 / −5 / −7: 100.9 / 98.3 / 94.2 / 91.8; Gated DeltaNet: 92.3.
FIRST_STRENGTH = -7.0


@final
class PrismOnBase(Memory):
    """Gated DeltaNet, and L solver steps beside its write; with no steps it is Gated DeltaNet, weight for weight.

    In a mixture of memories the solver is common to all of them, like the convolution.
    """

    Config = PrismFields
    config: PrismFields

    def __init__(self, dim: int, config: PrismFields):
        super().__init__(dim)
        like = GatedDeltaNetConfig(heads=config.heads, head_key=config.head_key, head_value=config.head_value)
        build_convolved(self, like, ("beta", "decay"), gated=True)
        self.config = config
        self.decay = DecayRate(config.heads)
        self.solver = Solver(dim, self.K, self.V, config) if config.steps else None

    def operands(self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace, project: Project) -> Recall:
        """Gated DeltaNet's, and the solver's beside them."""
        *seen, history, S = self.opened(state)
        part, history = convolved(self, x, history, pace, project)
        write = delta_write(part)._replace(log_alpha=self.decay(part["decay"]))
        if self.solver is None:
            return Recall(write, part["gate"], S, (history,))
        u, *after = self.solver.anchor(x, seen, pace)
        return Recall(self.solver(write, u), part["gate"], S, (*after, history))

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The anchor's last inputs where it has a window, those of the base's convolution, and S."""
        conv = None if self.solver is None else self.solver.conv
        return super().state_shapes() if conv is None else (conv.state_shape(), *super().state_shapes())

    def state_flops(self, length: int) -> int:
        """Decay, erasures, L+1 writes and the read of each head."""
        config = self.config
        return config.heads * delta_rule_flops(config.writes, self.K, self.V, erasures=config.erasures)


class Solver(nn.Module):
    """L refinement steps beside a write: an anchor, and the steps' gains, directions and strengths from it."""

    def __init__(self, dim: int, K: int, V: int, config: PrismFields):
        super().__init__()
        self.config, H, L = config, config.heads, config.steps
        self.conv = ShortConv(dim, config.conv_size) if config.anchor == "shortconv" else None
        self.norm = nn.LayerNorm(dim)
        own, self.lifted = solver_sizes(config, dim, K, V)
        self.sizes = {"beta": H * L} | own
        self.project = nn.Linear(dim, sum(self.sizes.values()), bias=False)
        self.lift = nn.Linear(own["low"], sum(self.lifted.values()), bias=False) if self.lifted else None
        self.gain_bias = nn.Parameter(torch.ones(H, config.gains, V)) if config.gains else None
        self.beta_bias = nn.Parameter(torch.full((H, L), FIRST_STRENGTH))

    def anchor(self, x: Float[Tensor, "*tokens D"], seen: Sequence[Tensor | None], pace: Pace) -> tuple[Tensor, ...]:
        """u, then the history of its window where it has one."""
        if self.conv is None:
            return (self.norm(x),)
        return pace.conv(self.conv, x, seen[0], self.norm)

    def forward(self, base: Write, u: Float[Tensor, "*tokens D"]) -> Write:
        """The base's write, and L more terms."""
        config, H = self.config, self.config.heads
        part = named(self.project(u), self.sizes)
        if self.lift is not None:
            part |= named(self.lift(part["low"]), self.lifted)
        k, dtype = base.k.unsqueeze(-2), base.q.dtype
        if config.free_keys:
            free = part["keys"].unflatten(-1, (H, config.free_keys, k.shape[-1]))
            k = torch.cat([k, unit(free).to(dtype)], -2)
        delta = corrections(config, base.v, u, part, self.gain_bias)
        beta = (part["beta"].unflatten(-1, (H, config.steps)) + self.beta_bias).sigmoid()
        beta = torch.cat([base.beta.unsqueeze(-1), beta.to(dtype)], -1)
        return base._replace(
            k=repeat_last(k, config.writes),
            v=torch.cat([base.v.unsqueeze(-2), delta.to(dtype)], -2),  # under autocast anchor and biases are float32
            beta=beta,
            erase=config.erase(beta),
        )
