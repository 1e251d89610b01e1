"""DeltaProduct: S_t = α_t S_{t-1} Π_l (I − β^l k^l k^lᵀ) + …, L steps of the delta rule per token, β up to 2."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from prism.config import Count
from prism.layers.base.memory import Memory, Project, Recall
from prism.layers.base.mixer import State
from prism.layers.base.pace import Pace, Write
from prism.layers.base.parts import DecayRate, GatedRead, ShortConv, unit
from prism.layers.deltanet import DeltaNetConfig
from prism.ops.delta.rule import delta_rule_flops


@dataclass(frozen=True, kw_only=True)
class DeltaProductConfig(DeltaNetConfig):
    """DeltaProduct as published, with eigenvalues down to −1; `gated` is its variant with a decay and a gated read."""

    steps: Count = 2
    """L, steps of the delta rule per token, each with a key, a value and a strength of its own."""
    reflect: bool = True
    """β up to 2, so that eigenvalues reach −1; else up to 1."""
    gated: bool = False
    """A decay per head and a gated read, as Gated DeltaNet has them."""


@final
class DeltaProduct(Memory):
    """DeltaProduct: a product of L generalised Householder matrices as the transition of every token."""

    Config = DeltaProductConfig
    config: DeltaProductConfig

    def __init__(self, dim: int, config: DeltaProductConfig):
        super().__init__(dim)
        self.config, H, L = config, config.heads, config.steps
        self.K, self.V = K, V = config.head_sizes(dim)
        mixed = {"q": H * K, "k": H * L * K, "v": H * L * V}
        self.conv: ShortConv = ShortConv(sum(mixed.values()), config.conv_size)
        self.sizes = mixed | {"beta": H * L} | ({"gate": H * V, "decay": H} if config.gated else {})
        self.project = nn.Linear(dim, sum(self.sizes.values()), bias=False)
        self.decay = DecayRate(H) if config.gated else None
        self.read = GatedRead(V)
        self.out = nn.Linear(H * V, dim, bias=False)

    def operands(self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace, project: Project) -> Recall:
        """Project, convolve, and give each step its key, value and strength."""
        history, S = self.opened(state)
        H, L = self.config.heads, self.config.steps
        mixed, *rest = project(x).split([len(self.conv.weight), *list(self.sizes.values())[3:]], -1)
        part = dict(zip(list(self.sizes)[3:], rest, strict=True))
        mixed, history = pace.conv(self.conv, mixed, history)
        q, k, v = mixed.split(list(self.sizes.values())[:3], -1)
        beta = (1 + self.config.reflect) * part["beta"].unflatten(-1, (H, L)).sigmoid()
        write = Write(
            q=unit(q.unflatten(-1, (H, self.K))),
            k=unit(k.unflatten(-1, (H, L, self.K))),
            v=v.unflatten(-1, (H, L, self.V)),
            beta=beta,
            log_alpha=None if self.decay is None else self.decay(part["decay"]),
            erase=beta,
        )
        return Recall(write, part.get("gate"), S, (history,))

    def state_flops(self, length: int) -> int:
        """Each step's erasure and write, and the read, of each head."""
        config = self.config
        flops = delta_rule_flops(config.steps, self.K, self.V, erasures=config.steps, decays=config.gated)
        return config.heads * flops
