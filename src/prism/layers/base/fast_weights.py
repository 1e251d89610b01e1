"""What mixers whose state is a network of its own share: q, k, v after one convolution, and a gate per head."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from prism.layers.base.mixer import Mixer, MixerConfig
from prism.layers.base.pace import Pace
from prism.layers.base.parts import ShortConv, wide


class FastWeights(Mixer):
    """A mixer that trains a memory on each token; its gates have names."""

    d: int
    gates: Sequence[str]
    sizes: Sequence[int]
    project: nn.Linear
    conv: ShortConv

    def build_projections(self, config: MixerConfig, conv_size: int, gates: Sequence[str]) -> None:
        """Maps of the input to q, k, v, the output's gate, and one number per head for each of `gates`."""
        H, dim = config.heads, self.dim
        self.d = d = config.head_size(dim, None, "heads")
        self.gates, self.sizes = gates, [3 * H * d, H * d, *[H] * len(gates)]
        self.project = nn.Linear(dim, sum(self.sizes), bias=False)
        self.conv = ShortConv(self.sizes[0], conv_size)

    def projected(
        self, x: Float[Tensor, "B T D"], heads: int, pace: Pace, history: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor, dict[str, Tensor], Tensor]:
        """((q, k, v), the output's gate, the named gates, the convolution's last inputs)."""
        qkv, gate, *gates = self.project(x).split(self.sizes, -1)
        qkv, history = pace.conv(self.conv, qkv, history)
        given = dict(zip(self.gates, (wide(y) for y in gates), strict=True))
        return wide(qkv).unflatten(-1, (3, heads, self.d)).unbind(-3), gate, given, history
