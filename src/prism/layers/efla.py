"""EFLA: S_t = S_{t-1} (I − a k kᵀ) + a v kᵀ with a = (1 − e^{−βλ}) / λ, λ = ‖k‖²: the delta rule's flow, exactly."""

from dataclasses import dataclass
from math import factorial
from typing import Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from prism.layers.base.memory import Memory, Project, Recall
from prism.layers.base.mixer import State
from prism.layers.base.pace import Pace, Write
from prism.layers.base.parts import unit, wide
from prism.layers.deltanet import DeltaNetConfig, build_convolved, convolved
from prism.ops.delta.rule import delta_rule_flops

Rate = Literal["sigmoid", "softplus"]


@dataclass(frozen=True, kw_only=True)
class EflaConfig(DeltaNetConfig):
    """Error-free linear attention as published: DeltaNet with raw keys and the exact rate."""

    rate: Rate = "sigmoid"
    """What makes β of its logit; `softplus` leaves it unbounded, which the exact rate can bear."""


@final
class Efla(Memory):
    """EFLA: DeltaNet's differential equation solved over a time β; a key's length says how much to learn."""

    Config = EflaConfig
    config: EflaConfig

    def __init__(self, dim: int, config: EflaConfig):
        super().__init__(dim)
        build_convolved(self, config, ("beta",), gated=False)

    def operands(self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace, project: Project) -> Recall:
        """Raw keys, and the rate that is exact for their length."""
        history, S = self.opened(state)
        part, history = convolved(self, x, history, pace, project)
        logit, k, v = wide(part["beta"]), part["k"], part["v"]
        beta = logit.sigmoid() if self.config.rate == "sigmoid" else F.softplus(logit)
        rate = exact_rate(beta, wide(k).square().sum(-1)).to(v.dtype)
        return Recall(Write(unit(part["q"]), k, v, rate), None, S, (history,))

    def state_flops(self, length: int) -> int:
        """Erase, one write and the read of each head."""
        return self.config.heads * delta_rule_flops(1, self.K, self.V, decays=False)


def exact_rate(beta: Float[Tensor, "*tokens H"], energy: Float[Tensor, "*tokens H"]) -> Float[Tensor, "*tokens H"]:
    """(1 − e^{−βλ}) / λ for λ = `energy` ≥ 0, which is β at λ = 0."""
    x = beta * energy
    small = x < 0.02
    # the quotient's derivative loses eps/x of its precision near 0, where six terms of the series are exact
    series = sum((-x) ** n / factorial(n + 1) for n in range(1, 7)) + 1
    safe = torch.where(small, torch.ones_like(x), x)  # both branches are differentiated: neither may be 0/0
    return beta * torch.where(small, series, -torch.expm1(-safe) / safe)
