"""What mixers whose state is a network of its own share: q, k, v after one convolution, gates per head, the read."""

from abc import abstractmethod
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from prism.layers.base.mixer import ConvConfig, Mixer, State
from prism.layers.base.pace import Pace, Sequences
from prism.layers.base.parts import GatedRead, ShortConv, unit, wide
from prism.ops.common.packing import Packing


class FastWeights(Mixer):
    """A mixer that trains a memory on each token; its gates have names. Subclasses give `fresh` and `remember`."""

    parallel = False
    sequences_only = True
    config: ConvConfig
    read: GatedRead

    def build_projections(self, config: ConvConfig, gates: Sequence[str]) -> None:
        """Maps of the input to q, k, v, the output's gate, and one number per head for each of `gates`."""
        self.config, H, dim = config, config.heads, self.dim
        self.d = d = config.head_size(dim, None, "heads")
        self.gates, self.sizes = gates, [3 * H * d, H * d, *[H] * len(gates)]
        self.project = nn.Linear(dim, sum(self.sizes), bias=False)
        self.conv = ShortConv(self.sizes[0], config.conv_size)

    def build_read(self) -> None:
        """From what the memory answers to the residual stream."""
        self.read = GatedRead(self.d)
        self.out = nn.Linear(self.config.heads * self.d, self.dim, bias=False)

    def mix(self, x: Float[Tensor, "B T D"], state: State | None, pace: Pace) -> tuple[Float[Tensor, "B T D"], State]:
        """Whole sequences, their tokens or chunks one after the other."""
        assert isinstance(pace, Sequences)
        history, memory = (None, self.fresh(x, pace.count(x))) if state is None else (state[0], state[1:])
        qkv, gate, *gates = self.project(x).split(self.sizes, -1)
        qkv, history = pace.conv(self.conv, qkv, history)
        q, k, v = wide(qkv).unflatten(-1, (3, self.config.heads, self.d)).unbind(-3)
        given = dict(zip(self.gates, (wide(y) for y in gates), strict=True))
        o, memory = self.remember(unit(q), unit(k), v, given, memory, pace.packing)
        return self.out(self.read(o.to(x.dtype), gate)), (history, *memory)

    @abstractmethod
    def fresh(self, x: Tensor, sequences: int) -> State:
        """The memory before the first token."""

    @abstractmethod
    def remember(
        self, q: Tensor, k: Tensor, v: Tensor, given: dict[str, Tensor], memory: State, packing: Packing | None
    ) -> tuple[Tensor, State]:
        """(answers, memory after them) of tokens [B, T, H, d], trained on under the gates given."""


def trained_flops(weights: nn.ParameterList) -> int:
    """Of one token, for each weight of a memory: the answer to the key, the gradient, the update, the read."""
    hidden = sum(W.numel() for W in list(weights)[1:])  # the gradient goes back through these
    return 9 * sum(W.numel() for W in weights) + 2 * hidden
