"""Parts that several mixers share: the short convolution, the gated read, the rates of forgetting."""

from math import log
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.ops.common.checks import compute_dtype
from prism.ops.common.device import on_gpu
from prism.ops.common.packing import Limits
from prism.ops.conv import Norm, short_conv, short_conv_step
from prism.ops.fused import kernels_for

ConvStart = Literal["identity", "random"]


class ShortConv(nn.Module):
    """SiLU of a causal depthwise convolution; its state is the last W−1 inputs, W where it sees the past alone."""

    def __init__(self, dim: int, window: int, bias: bool = False, *, past: bool = False, start: ConvStart = "identity"):
        super().__init__()
        self.past, self.start = past, start
        self.weight = nn.Parameter(torch.empty(dim, window))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    @property
    def taps(self) -> Float[Tensor, "D W"]:
        """Weights of the inputs from the oldest to the current one, which has none where the past alone is seen."""
        return F.pad(self.weight, (0, 1)) if self.past else self.weight

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        history: Float[Tensor, "N W D"] | None,
        cu_seqlens: Limits | None,
        norm: nn.LayerNorm | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N W D"]]:
        """The whole sequence, behind `norm` if given, and the history after it."""
        more = {"history": history, "cu_seqlens": cu_seqlens, "norm": norm and Norm(norm.weight, norm.bias, norm.eps)}
        return short_conv(x, self.taps, bias=self.bias, silu=True, **more)  # type: ignore[arg-type]

    def step(
        self, x: Float[Tensor, "N D"], history: Float[Tensor, "N W D"] | None, norm: nn.LayerNorm | None = None
    ) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N W D"]]:
        """One token, behind `norm` if given, and the history after it."""
        y, history = short_conv_step(x, self.taps, history=history)
        y = F.silu(y if self.bias is None else y + self.bias)
        return y if norm is None else norm(y), history

    def state_shape(self) -> tuple[int, int]:
        """The inputs that the next token will want, of the width."""
        return self.weight.shape[1] - 1 + self.past, self.weight.shape[0]


class GatedRead(nn.Module):
    """What is read from the state, normalised per head and gated: RMSNorm(o) ⊙ SiLU(gate); gate None: ungated."""

    def __init__(self, size: int):
        super().__init__()
        self.norm = nn.RMSNorm(size, eps=1e-6)

    def forward(
        self, o: Float[Tensor, "*tokens H V"], gate: Float[Tensor, "*tokens H*V"] | None
    ) -> Float[Tensor, "*tokens H*V"]:
        """One vector per token, heads side by side."""
        if gate is not None and on_gpu(o):  # on the CPU the norm and the gate are PyTorch's, which are not slow there
            compiled = kernels_for(o, gate, weights=(self.norm.weight,))
            if compiled is not None:
                return compiled.gated_norm(o, self.norm.weight, gate.view_as(o), 1e-6).flatten(-2)  # type: ignore[no-any-return]
        o = self.norm(o).flatten(-2)
        return o if gate is None else o * F.silu(gate)


class PlainRead(nn.Module):
    """What is read from the state as it is, heads side by side."""

    def forward(self, o: Float[Tensor, "*tokens H V"], gate: None) -> Float[Tensor, "*tokens H*V"]:
        """One vector per token."""
        return o.flatten(-2)


class LinearEach(nn.Module):
    """Several linear maps side by side, each for its own share of the tokens."""

    def __init__(self, maps: int, dim: int, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(maps, size, dim))

    def forward(self, x: Float[Tensor, "*one tokens D"], counts: list[int]) -> Float[Tensor, "*one tokens E"]:
        """The first `counts[0]` tokens through the first map, and so on."""
        shares = x.split(counts, -2)
        return torch.cat([F.linear(y, w) for y, w in zip(shares, self.weight, strict=True)], -2)


def half_lives(heads: int, shortest: float = 4.0, longest: float = 1024.0) -> Float[Tensor, " H"]:
    """Logits of decays whose half-lives are spread evenly in logarithm from `shortest` to `longest` tokens.

    A single head has the one in the middle. In torch's default dtype, as every other parameter is made.
    """
    ends = (log(shortest), log(longest)) if heads > 1 else ((log(shortest) + log(longest)) / 2,) * 2
    tokens = torch.logspace(*ends, heads, base=torch.e, dtype=torch.float64)
    return torch.logit(0.5 ** (1 / tokens)).to(torch.get_default_dtype())


class DecayRate(nn.Module):
    """Mamba's decay, log α = −e^A softplus(x + b): rates A from 1 to 16, time steps from 0.001 to 0.1 per token."""

    def __init__(self, heads: int):
        super().__init__()
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        step = torch.empty(heads).uniform_(log(0.001), log(0.1)).exp()
        self.bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus(bias) = step

    def forward(self, x: Float[Tensor, "*tokens H"]) -> Float[Tensor, "*tokens H"]:
        """log α, in float32 or better."""
        return -wide(self.log_rate).exp() * self.step(x)

    def step(self, x: Float[Tensor, "*tokens H"]) -> Float[Tensor, "*tokens H"]:
        """Mamba's time step Δ = softplus(x + b), in float32 or better."""
        return F.softplus(wide(x) + wide(self.bias))


def wide(x: Tensor) -> Tensor:
    """x in float32 or better: bfloat16 cannot tell a decay of 0.999 from 1."""
    return x.to(compute_dtype(x.dtype))


def unit(x: Float[Tensor, "*tokens K"]) -> Float[Tensor, "*tokens K"]:
    """x / ‖x‖; a zero vector stays zero."""
    compiled = kernels_for(x) if x.numel() else None
    return F.normalize(x, dim=-1, eps=1e-6) if compiled is None else compiled.normalize(x)  # type: ignore[no-any-return]
