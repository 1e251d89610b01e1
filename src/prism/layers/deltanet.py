"""DeltaNet and Gated DeltaNet: S_t = α_t S_{t-1} (I − β k kᵀ) + β v kᵀ; q, k, v each through a short convolution."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from prism.config import Count
from prism.layers.base.memory import Memory, Project, Recall
from prism.layers.base.mixer import HeadSizesConfig, State
from prism.layers.base.pace import Pace, Write
from prism.layers.base.parts import DecayRate, GatedRead, ShortConv, unit
from prism.ops.delta.rule import delta_rule_flops


@dataclass(frozen=True, kw_only=True)
class DeltaNetConfig(HeadSizesConfig):
    """DeltaNet as published: no decay, no output gate."""

    conv_size: Count = 4
    """Window of the short convolutions, in tokens."""


def build_convolved(memory: Memory, config: DeltaNetConfig, scalars: tuple[str, ...], *, gated: bool) -> None:
    """The parts of DeltaNet and its relatives: q, k and v through one convolution, each of `scalars` one per head."""
    memory.config, H, dim = config, config.heads, memory.dim
    memory.K, memory.V = K, V = config.head_sizes(dim)
    memory.sizes = {"q": H * K, "k": H * K, "v": H * V}
    memory.conv = ShortConv(sum(memory.sizes.values()), config.conv_size)
    memory.sizes |= ({"gate": H * V} if gated else {}) | dict.fromkeys(scalars, H)
    memory.project = nn.Linear(dim, sum(memory.sizes.values()), bias=False)
    memory.read = GatedRead(V)
    memory.out = nn.Linear(H * V, dim, bias=False)


def convolved(
    memory: Memory, x: Float[Tensor, "*tokens D"], history: Tensor | None, pace: Pace, project: Project
) -> tuple[dict[str, Tensor], Tensor]:
    """The parts of the projection by name, q, k, v convolved and [..., H, K or V]; and the convolution's history."""
    assert memory.conv is not None
    H, K, V = memory.config.heads, memory.K, memory.V
    qkv, *rest = project(x).split([len(memory.conv.weight), *list(memory.sizes.values())[3:]], -1)
    part = dict(zip(list(memory.sizes)[3:], rest, strict=True))
    qkv, history = pace.conv(memory.conv, qkv, history)
    for name, y, width in zip("qkv", qkv.split([H * K, H * K, H * V], -1), (K, K, V), strict=True):
        part[name] = y.unflatten(-1, (H, width))
    return part, history


def delta_write(part: dict[str, Tensor]) -> Write:
    """DeltaNet's write β v kᵀ, with the erasure along k."""
    return Write(unit(part["q"]), unit(part["k"]), part["v"], part["beta"].sigmoid())


@final
class DeltaNet(Memory):
    """DeltaNet: the rank-1 delta rule."""

    Config = DeltaNetConfig

    def __init__(self, dim: int, config: DeltaNetConfig):
        super().__init__(dim)
        build_convolved(self, config, ("beta",), gated=False)

    def operands(self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace, project: Project) -> Recall:
        history, S = self.opened(state)
        part, history = convolved(self, x, history, pace, project)
        return Recall(delta_write(part), None, S, (history,))

    def state_flops(self, length: int) -> int:
        """Erase, one write and the read of each head."""
        return self.config.heads * delta_rule_flops(1, self.K, self.V, decays=False)


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetConfig(DeltaNetConfig):
    """Gated DeltaNet as published: DeltaNet with a decay per head and a gated read."""


@final
class GatedDeltaNet(Memory):
    """Gated DeltaNet: the delta rule with α = exp(−e^A softplus(Wx + b))."""

    Config = GatedDeltaNetConfig

    def __init__(self, dim: int, config: GatedDeltaNetConfig):
        super().__init__(dim)
        build_convolved(self, config, ("beta", "decay"), gated=True)
        self.decay = DecayRate(config.heads)

    def operands(self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace, project: Project) -> Recall:
        """DeltaNet's, with a decay and a gate."""
        history, S = self.opened(state)
        part, history = convolved(self, x, history, pace, project)
        write = delta_write(part)._replace(log_alpha=self.decay(part["decay"]))
        return Recall(write, part["gate"], S, (history,))

    def state_flops(self, length: int) -> int:
        """Decay, erase, one write and the read of each head."""
        return self.config.heads * delta_rule_flops(1, self.K, self.V)
