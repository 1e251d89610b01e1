"""Titans: a memory M trained on each token with momentum and forgetting, ‖M(k) − v‖², and read after the write."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prism.config import Count
from prism.layers.base.fast_weights import FastWeights, trained_flops
from prism.layers.base.mixer import ConvConfig, State
from prism.layers.base.parts import half_lives, wide
from prism.ops.common.packing import Packing
from prism.ops.fastweight.titans import titans

Memory = Literal["linear", "mlp"]


@dataclass(frozen=True, kw_only=True)
class TitansConfig(ConvConfig):
    """Titans' neural memory."""

    memory: Memory = "mlp"
    """M: two layers with a GELU between them; or one matrix."""
    expansion: Count = 2
    """Width of the memory's hidden layer, in head widths."""
    chunk: Count = 16
    """Tokens whose gradients are taken at the same weights: a part of the function. 1 is the equation, serial."""
    momentum: bool = True
    """Whether Z carries over (η); without, a token's own gradient is all it adds."""
    forget: bool = True
    """Whether the memory decays (α)."""


@final
class Titans(FastWeights):
    """Titans' neural memory, trained on each token with momentum and forgetting; without the attention branch."""

    Config = TitansConfig
    config: TitansConfig

    def __init__(self, dim: int, config: TitansConfig):
        super().__init__(dim)
        gates = ["rate", *["momentum"] * config.momentum, *["forget"] * config.forget]
        self.build_projections(config, gates)
        d, H = self.d, config.heads
        self.keep_bias = nn.Parameter(half_lives(H)) if config.forget else None
        widths = (d, config.expansion * d, d) if config.memory == "mlp" else (d, d)
        # M before the first token is learnt: a memory of two zero matrices would have no gradient
        self.start = nn.ParameterList(torch.randn(H, m, n) * m**-0.5 for m, n in pairwise(widths))
        self.build_read()

    def remember(
        self, q: Tensor, k: Tensor, v: Tensor, given: dict[str, Tensor], memory: State, packing: Packing | None
    ) -> tuple[Tensor, State]:
        return titans(
            q,
            k,
            v,
            # 2θ sums to at most 1 over a chunk: b equal keys move a linear memory onto their value, not past it
            given["rate"].sigmoid() / (2 * self.config.chunk),
            F.logsigmoid(given["momentum"]) if self.config.momentum else None,
            None if self.keep_bias is None else F.logsigmoid(given["forget"] + wide(self.keep_bias)),
            memory,
            chunk=self.config.chunk,
            cu_seqlens=packing,
        )

    def fresh(self, x: Tensor, sequences: int) -> State:
        M = [wide(M).expand(sequences, *M.shape) for M in self.start]
        place = torch.zeros(sequences, dtype=torch.long, device=x.device)
        return *M, *M, *(torch.zeros_like(M_l) for M_l in M), place

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs, M before the chunk, M, Z, and the tokens into the chunk."""
        weights = tuple(tuple(M.shape) for M in self.start)
        return self.conv.state_shape(), *weights, *weights, *weights, ()

    def state_flops(self, length: int) -> int:
        """With momentum and decay in the update."""
        return trained_flops(self.start)
