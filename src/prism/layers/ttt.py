"""TTT-Linear and TTT-MLP: the state is a model's weights W, trained on each token, ½‖LN(f(k; W)) − (v − k)‖²."""

from abc import abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prism.config import Count
from prism.errors import InputError
from prism.layers.base.fast_weights import trained_flops
from prism.layers.base.mixer import Mixer, MixerConfig, State
from prism.layers.base.pace import Pace, Sequences
from prism.layers.base.parts import wide
from prism.ops.common.packing import read_bounds
from prism.ops.common.ragged import positions
from prism.ops.fastweight.ttt import ttt
from prism.ops.rotary import rotate


@dataclass(frozen=True, kw_only=True)
class TTTConfig(MixerConfig):
    """Test-time training as its authors' code computes it."""

    mini_batch: Count = 16
    """b, tokens whose gradients are taken at the same weights; 1 is fully serial."""


@dataclass(frozen=True, kw_only=True)
class TTTLinearConfig(TTTConfig):
    """TTT-Linear: the inner model is one affine map."""


@dataclass(frozen=True, kw_only=True)
class TTTMLPConfig(TTTConfig):
    """TTT-MLP: the inner model has one hidden layer."""

    expansion: Count = 4
    """Width of the hidden layer, in head widths."""


class TTT(Mixer):
    """What both have: projections, rotation by the place in the mini-batch, learning rates, the norm of the read."""

    parallel = False
    sequences_only = True

    @abstractmethod
    def __init__(self, dim: int, config: TTTConfig, widths: tuple[int, ...], base_rate: float):
        super().__init__(dim)
        self.config, H = config, config.heads
        self.d = d = config.head_size(dim, None, "heads")
        if d % 2:
            raise InputError(f"dim {dim} over heads {H} is {d}: rotary positions need an even head width")
        self.base_rate = base_rate
        self.project = nn.Linear(dim, 3 * H * d, bias=False)
        self.rate = nn.Linear(dim, H)
        self.token_rate = nn.Parameter(torch.zeros(config.mini_batch))
        self.norm_weight = nn.Parameter(torch.ones(H, d))
        self.norm_bias = nn.Parameter(torch.zeros(H, d))
        # the published scale; the last row of each is its bias, and starts at zero
        self.start = nn.ParameterList(
            torch.cat([0.02 * torch.randn(H, m, n), torch.zeros(H, 1, n)], 1) for m, n in pairwise(widths)
        )
        self.read = nn.LayerNorm(H * d, eps=1e-6)
        self.out = nn.Linear(H * d, dim, bias=False)

    def mix(self, x: Float[Tensor, "B T D"], state: State | None, pace: Pace) -> tuple[Float[Tensor, "B T D"], State]:
        assert isinstance(pace, Sequences)
        B, T, _ = x.shape
        if state is None:
            state = self._fresh(pace.count(x))
        q, k, v = self.project(x).unflatten(-1, (3, self.config.heads, self.d)).unbind(2)
        place = positions(B, T, read_bounds(pace.packing, B, T), state[-1], x.device) % self.config.mini_batch
        rate = self.base_rate / self.d * wide(self.rate(x)).sigmoid()
        nth = torch.arange(1, self.config.mini_batch + 1, device=x.device)
        token_rate = wide(self.token_rate) + 1 / nth.to(rate.dtype)
        norm = (self.norm_weight, self.norm_bias)
        o, state = ttt(
            rotate(wide(q), place),
            rotate(wide(k), place),
            wide(v),
            rate,
            token_rate.clamp(min=0),
            norm,
            state,
            cu_seqlens=pace.packing,
        )
        return self.out(self.read(o.to(x.dtype).flatten(-2))), state

    def _fresh(self, sequences: int) -> State:
        W = [wide(W).expand(sequences, *W.shape) for W in self.start]
        place = torch.zeros(sequences, dtype=torch.long, device=self.token_rate.device)
        return *W, *(torch.zeros_like(W_l) for W_l in W), place

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The weights at the mini-batch's start, the gradients summed since, and how many they are."""
        weights = tuple(tuple(W.shape) for W in self.start)
        return *weights, *weights, ()

    def state_flops(self, length: int) -> int:
        """The read with both W and D."""
        return trained_flops(self.start)


@final
class TTTLinear(TTT):
    """Test-time training, the inner model f(x) = x W + c."""

    Config = TTTLinearConfig

    def __init__(self, dim: int, config: TTTLinearConfig):
        d = config.head_size(dim, None, "heads")
        super().__init__(dim, config, (d, d), base_rate=1.0)


@final
class TTTMLP(TTT):
    """Test-time training, the inner model f(x) = gelu(x W_1 + c_1) W_2 + c_2."""

    Config = TTTMLPConfig

    def __init__(self, dim: int, config: TTTMLPConfig):
        d = config.head_size(dim, None, "heads")
        super().__init__(dim, config, (d, config.expansion * d, d), base_rate=0.1)
