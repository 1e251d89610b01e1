"""DeltaNet and Gated DeltaNet: S_t = α_t S_{t-1} (I − β k kᵀ) + β v kᵀ; q, k, v each through a short convolution."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from prism.config import at_least
from prism.layers.base.memory import Memory, Pace, Write
from prism.layers.base.mixer import MixerConfig, State
from prism.layers.base.parts import DecayRate, GatedRead, ShortConv, unit
from prism.ops.delta.rule import delta_rule_flops


@dataclass(frozen=True, kw_only=True)
class DeltaNetConfig(MixerConfig):
    """DeltaNet as published: no decay, no output gate."""

    conv_size: int = 4
    """Window of the short convolutions, in tokens."""
    head_key: int | None = None
    """Width K of a head's keys; None: dim / heads."""
    head_value: int | None = None
    """Width V of a head's values; None: dim / heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("conv_size", self.conv_size, 1)
        for name in ("head_key", "head_value"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)

    def _make(self, dim: int) -> "DeltaNet":
        return DeltaNet(dim, self)


class DeltaNet(Memory):
    """DeltaNet: the rank-1 delta rule. Its relatives differ in `write`, and in the scalars and gate they project."""

    Config: ClassVar[type[MixerConfig]] = DeltaNetConfig
    config: MixerConfig
    scalars: ClassVar[tuple[str, ...]] = ("beta",)
    """What a token has one number of in each head."""
    gated: ClassVar[bool] = False
    """Whether the read is gated."""

    def __init__(self, dim: int, config: DeltaNetConfig):
        super().__init__(dim)
        self.config, H = config, config.heads
        self.K = K = config.head_size(dim, config.head_key, "head_key")
        self.V = V = config.head_size(dim, config.head_value, "head_value")
        self.sizes = {"q": H * K, "k": H * K, "v": H * V}
        self.conv = ShortConv(sum(self.sizes.values()), config.conv_size)
        self.sizes |= {"gate": H * V} if self.gated else {}
        self.sizes |= dict.fromkeys(self.scalars, H)
        self.project = nn.Linear(dim, sum(self.sizes.values()), bias=False)
        self.read = GatedRead(V)
        self.out = nn.Linear(H * V, dim, bias=False)

    def recall(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace, project: Callable[[Tensor], Tensor]
    ) -> tuple[Float[Tensor, "*tokens H V"], Float[Tensor, "*tokens HV"] | None, State]:
        """Project, convolve, run the recurrence."""
        history, *memory = state or (None,) * len(self.state_shapes())
        (q, k, v), part, history = self.operands(x, history, pace, project)
        o, after = self.remember(q, k, v, part, memory, pace)
        return o, part.get("gate"), (history, *after)

    def operands(
        self, x: Float[Tensor, "*tokens D"], history: Tensor | None, pace: Pace, project: Callable[[Tensor], Tensor]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor], Tensor]:
        """Convolved q, k, v [..., H, K or V], what else is projected by its name, and the convolution's history."""
        mixed = len(self.conv.weight)
        qkv, *rest = project(x).split([mixed, *list(self.sizes.values())[3:]], -1)
        part = dict(zip(list(self.sizes)[3:], rest, strict=True))
        qkv, history = pace.conv(self.conv, qkv, history)
        H, K, V = self.config.heads, self.K, self.V
        q, k, v = qkv.split([H * K, H * K, H * V], -1)
        return (q.unflatten(-1, (H, K)), k.unflatten(-1, (H, K)), v.unflatten(-1, (H, V))), part, history

    def remember(
        self,
        q: Float[Tensor, "*tokens H K"],
        k: Float[Tensor, "*tokens H K"],
        v: Float[Tensor, "*tokens H V"],
        part: dict[str, Tensor],
        memory: Sequence[Tensor | None],
        pace: Pace,
    ) -> tuple[Float[Tensor, "*tokens H V"], list[Tensor]]:
        """The recurrence; `memory` is the state without the convolution's history."""
        o, S = pace.delta_rule(self.write(q, k, v, part), memory[0])
        return o, [S]

    def write(self, q: Tensor, k: Tensor, v: Tensor, part: dict[str, Tensor]) -> Write:
        """The operands of the recurrence, from convolved q, k, v [..., H, K or V] and the scalars [..., H]."""
        return Write(unit(q), unit(k), v, part["beta"].sigmoid())

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs, and S."""
        return self.conv.state_shape(), (self.config.heads, self.V, self.K)

    def state_flops(self, length: int) -> int:
        """Erase, one write and the read of each head."""
        return self.config.heads * delta_rule_flops(1, self.K, self.V, decays=False)


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetConfig(DeltaNetConfig):
    """Gated DeltaNet as published: DeltaNet with a decay a head and a gated read."""

    def _make(self, dim: int) -> "GatedDeltaNet":
        return GatedDeltaNet(dim, self)


class GatedDeltaNet(DeltaNet):
    """Gated DeltaNet: the delta rule with α = exp(−e^A softplus(Wx + b))."""

    Config: ClassVar[type[MixerConfig]] = GatedDeltaNetConfig
    scalars: ClassVar[tuple[str, ...]] = ("beta", "decay")
    gated = True

    def __init__(self, dim: int, config: GatedDeltaNetConfig):
        super().__init__(dim, config)
        self.decay = DecayRate(config.heads)

    def write(self, q: Tensor, k: Tensor, v: Tensor, part: dict[str, Tensor]) -> Write:
        """DeltaNet's, with decay."""
        return super().write(q, k, v, part)._replace(log_alpha=self.decay(part["decay"]))

    def state_flops(self, length: int) -> int:
        """Decay, erase, one write and the read of each head."""
        return self.config.heads * delta_rule_flops(1, self.K, self.V)
