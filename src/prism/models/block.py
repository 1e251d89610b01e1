"""A pre-norm block: x + mixer(norm(x)), then x + SwiGLU(norm(x))."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.layers.base.dropout import Dropout
from prism.layers.base.mixer import MixerConfig, State
from prism.ops.common.packing import Packing
from prism.ops.context.segment import Segment


class SwiGLU(nn.Module):
    """out(SiLU(a) ⊙ b) with a, b from one projection."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.project = nn.Linear(dim, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens D"]:
        gate, value = self.project(x).chunk(2, -1)
        return self.out(F.silu(gate) * value)


class Block(nn.Module):
    """One mixer and one SwiGLU, each behind a norm and added to its input."""

    def __init__(self, dim: int, mixer: MixerConfig, hidden: int, dropout: float):
        super().__init__()
        self.mixer = mixer.build(dim)
        whole = self.mixer.whole_block
        self.norm = None if whole else nn.RMSNorm(dim, eps=1e-6)
        has_ffn = hidden > 0 and not whole
        self.ffn_norm = nn.RMSNorm(dim, eps=1e-6) if has_ffn else None
        self.ffn = SwiGLU(dim, hidden) if has_ffn else None
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        state: State | None,
        packing: Packing | Segment | None,
        times: Int[Tensor, "B T 2"] | None,
        last: bool = False,
    ) -> tuple[Float[Tensor, " B #T D"], State]:
        """Whole sequences; with `last` what comes of their last tokens alone."""
        y, state = self.mixer(x if self.norm is None else self.norm(x), state, packing, times)
        return self._rest(x[:, -1:], y[:, -1:]) if last else self._rest(x, y), state

    def step(
        self, x: Float[Tensor, "N D"], state: State | None, times: Int[Tensor, "N 2"] | None
    ) -> tuple[Float[Tensor, "N D"], State]:
        y, state = self.mixer.step(x if self.norm is None else self.norm(x), state, times)
        return self._rest(x, y), state

    def _rest(self, x: Tensor, y: Tensor) -> Tensor:
        if self.norm is None:
            return y
        x = x + self.dropout(y)
        if self.ffn is None or self.ffn_norm is None:
            return x
        return x + self.dropout(self.ffn(self.ffn_norm(x)))
