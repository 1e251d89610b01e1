"""PRISM: S_t = α_t S_{t-1} (I − β¹ k¹ k¹ᵀ) + Σ_l β^l δ^l k^lᵀ, every operand from an anchor u_t of the input alone."""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.layers.base.memory import Memory, Project, Recall
from prism.layers.base.mixer import State
from prism.layers.base.pace import Pace, Write
from prism.layers.base.parts import GatedRead, PlainRead, ShortConv, half_lives, unit, wide
from prism.layers.prism.fields import PrismFields
from prism.layers.prism.on_base import PrismOnBase
from prism.layers.prism.solver import corrections, named, repeat_last, solver_sizes
from prism.ops.delta.rule import delta_rule_flops


@dataclass(frozen=True, kw_only=True)
class PrismConfig(PrismFields):
    """PRISM and its ablations: each is one field."""

    def _make(self, dim: int) -> Memory:
        return (PrismOnBase if self.base_write else Prism)(dim, self)


@final
class Prism(Memory):
    """PRISM (Algorithm 1): Gated DeltaNet's forgetting, a write of rank L from L refinement steps."""

    Config = PrismConfig
    config: PrismConfig

    def __init__(self, dim: int, config: PrismConfig):
        super().__init__(dim)
        self.config, H = config, config.heads
        self.K, self.V = K, V = config.head_sizes(dim)
        if config.anchor == "shortconv":
            self.conv = ShortConv(dim, config.conv_size, past=config.window == "past", start=config.conv_start)
        self.norm = nn.LayerNorm(dim) if config.anchor_norm == "layer" else nn.Identity()
        own, self.lifted = solver_sizes(config, dim, K, V)
        gate = {"gate": H * V} if config.read == "gated" else {}
        decay = {"decay": H} if config.decay == "learned" else {}
        self.sizes = {"q": H * K, "k": H * K, "v": H * V, **gate, "beta": config.writes * H, **decay, **own}
        self.project = nn.Linear(dim, sum(self.sizes.values()), bias=False)
        self.solver = nn.Linear(own["low"], sum(self.lifted.values()), bias=False) if self.lifted else None
        start = half_lives(H) if config.decay_start == "half-lives" else torch.zeros(H)
        self.decay_bias = nn.Parameter(start) if decay else None
        # the gain starts at 1 (φ' of an identity), so that every step writes from the first update on
        biased = config.gains and config.gain_bias
        self.gain_bias = nn.Parameter(torch.ones(H, config.gains, V)) if biased else None
        sharp = config.strength_bias
        self.beta_bias = None if sharp is None else nn.Parameter(torch.full((H, config.writes), float(sharp)))
        self.read = GatedRead(V) if gate else PlainRead()
        self.out = nn.Linear(H * V, dim, bias=False)

    def operands(self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace, project: Project) -> Recall:
        *history, S = self.opened(state)
        norm = self.norm if isinstance(self.norm, nn.LayerNorm) else None
        u, *after = (self.norm(x),) if self.conv is None else pace.conv(self.conv, x, history[0], norm)
        write, gate = self.write(u, project)
        return Recall(write, gate, S, tuple(after))

    def write(
        self, u: Float[Tensor, "*tokens D"], project: Project | None = None
    ) -> tuple[Write, Float[Tensor, "*tokens HV"] | None]:
        """Everything that follows from the anchor: the operands of the recurrence, and the gate of its read, if any."""
        config, H = self.config, self.config.heads
        part = named(self.project(u) if project is None else project(u), self.sizes)
        if self.solver is not None:
            part |= named(self.solver(part["low"]), self.lifted)

        def heads(name: str, *shape: int) -> Tensor:
            return part[name].unflatten(-1, (H, *shape))

        v = heads("v", self.V)
        delta = corrections(config, v, u, part, self.gain_bias) if config.steps else v.unsqueeze(-2)
        beta, q = heads("beta", config.writes), heads("q", self.K)
        beta = beta if self.beta_bias is None else (beta + self.beta_bias).to(beta.dtype)
        beta = beta.sigmoid() if config.strength == "sigmoid" else beta
        write = Write(
            q=unit(q) if config.unit_queries else q,
            k=self._directions(part),
            v=delta.to(part["q"].dtype),  # under autocast the anchor and the gain's bias are float32
            beta=beta,
            log_alpha=None if self.decay_bias is None else F.logsigmoid(wide(part["decay"]) + wide(self.decay_bias)),
            erase=config.erase(beta),
        )
        return write, part.get("gate")

    def _directions(self, part: dict[str, Tensor]) -> Float[Tensor, "*tokens H L K"]:
        """k^(1..L), the erased one first."""
        config = self.config
        k = part["k"].unflatten(-1, (config.heads, 1, self.K))
        if config.free_keys:
            k = torch.cat([k, part["keys"].unflatten(-1, (config.heads, config.free_keys, self.K))], -2)
        return repeat_last(unit(k) if config.unit_keys else k, config.writes)

    def state_flops(self, length: int) -> int:
        """Decay, erasures, L writes and the read of each head."""
        config = self.config
        return config.heads * delta_rule_flops(
            config.writes, self.K, self.V, erasures=config.erasures, decays=config.decay == "learned"
        )


PrismOnBase.Config = PrismConfig  # the other reading of the same fields
