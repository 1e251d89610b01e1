"""ATLAS: a memory of polynomial features, trained on a window of tokens at each one, its step orthogonalised."""

from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import factorial, log
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prism.config import Count
from prism.layers.base.fast_weights import FastWeights
from prism.layers.base.mixer import ConvConfig, State
from prism.layers.base.parts import half_lives, wide
from prism.ops.common.packing import Packing
from prism.ops.fastweight.atlas import atlas

Terms = Literal["powers", "monomials"]


@dataclass(frozen=True, kw_only=True)
class AtlasConfig(ConvConfig):
    """ATLAS with a linear memory, and OmegaNet (`newton_schulz` and `momentum` off)."""

    window: Count = 8
    """c, the last tokens that each step of the memory is taken on."""
    newton_schulz: bool = True
    """Whether five Newton–Schulz iterations bring the step's singular values near 1."""
    momentum: bool = True
    """Whether Z carries over (θ)."""
    degree: Count = 2
    """The highest degree of the features φ of queries and keys; 1 leaves them as they are."""
    terms: Terms = "powers"
    """Each coordinate's powers, degree · d features; or all products of coordinates, about d^degree / degree!."""


class Features(nn.Module):
    """φ(x) = (a_1 x, a_2 x², …): all terms of each degree i, under one learnt a_i that starts at 1/i!."""

    def __init__(self, size: int, degree: int, terms: Terms):
        super().__init__()
        self.coefficients = nn.Parameter(torch.tensor([1 / factorial(i) for i in range(1, degree + 1)]))
        self.products: list[Tensor | None] = [None] * degree  # for each degree the factors of its terms
        if terms == "monomials":
            degrees = range(1, degree + 1)
            self.products = [torch.tensor(list(combinations_with_replacement(range(size), i))).T for i in degrees]
        self.width = sum(size if factors is None else factors.shape[1] for factors in self.products)

    def forward(self, x: Float[Tensor, "*tokens d"]) -> Float[Tensor, "*tokens F"]:
        """Every term of every degree, side by side."""
        terms = []
        for i, (a, factors) in enumerate(zip(wide(self.coefficients), self.products, strict=True), 1):
            term = x**i if factors is None else x[..., factors.to(x.device)].prod(-2)
            terms.append(a * term)
        return torch.cat(terms, -1)


@final
class Atlas(FastWeights):
    """ATLAS: a memory trained on a window of tokens at once, its steps orthogonalised."""

    Config = AtlasConfig
    config: AtlasConfig

    def __init__(self, dim: int, config: AtlasConfig):
        super().__init__(dim)
        gates = ["weight", "keep", *["momentum"] * config.momentum, *["step"] * config.newton_schulz]
        self.build_projections(config, gates)
        d, H = self.d, config.heads
        self.features = Features(d, config.degree, config.terms)
        self.keep_bias = nn.Parameter(half_lives(H))
        # steps start at a tenth: with steps of 1 the memory never settles, and float32 cannot follow it
        self.step_bias = nn.Parameter(torch.full((H,), log(0.1 / 0.9))) if config.newton_schulz else None
        self.build_read()

    def remember(
        self, q: Tensor, k: Tensor, v: Tensor, given: dict[str, Tensor], memory: State, packing: Packing | None
    ) -> tuple[Tensor, State]:
        return atlas(
            self.features(q),
            self.features(k),
            v,
            # 2γ sums to at most 1 over a window: equal keys move the memory onto their value, not past it
            given["weight"].sigmoid() / (2 * self.config.window),
            given["momentum"].sigmoid() if self.config.momentum else torch.zeros_like(given["keep"]),
            (given["keep"] + wide(self.keep_bias)).sigmoid(),
            memory,
            iterations=5 if self.config.newton_schulz else 0,
            eta=None if self.step_bias is None else (given["step"] + wide(self.step_bias)).sigmoid(),
            cu_seqlens=packing,
        )

    def fresh(self, x: Tensor, sequences: int) -> State:
        return tuple(wide(x).new_zeros(sequences, *shape) for shape in self.state_shapes()[1:])

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs, M, Z, and the window's earlier tokens: features, value, weight."""
        M = (self.config.heads, self.features.width, self.d)
        window = (self.config.heads, self.config.window - 1, self.features.width + self.d + 1)
        return self.conv.state_shape(), M, M, window

    def state_flops(self, length: int) -> int:
        """The window's errors and gradients, momentum, Newton–Schulz, decay and read of each head."""
        rows, cols = sorted((self.features.width, self.d), reverse=True)
        each = rows * cols * (4 * self.config.window + 3 + 2)
        schulz = 5 * (4 * rows * cols * cols + 2 * cols**3)
        return self.config.heads * (each + schulz * self.config.newton_schulz)
