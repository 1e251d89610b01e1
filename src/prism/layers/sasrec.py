"""SASRec's block: Q = LN(X), X' = Q + MHA(Q, X, X), F = LN(X'), X = F + W₂ relu(W₁ F); causal, no output map."""

from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.config import Count, Fraction
from prism.layers.base.cached import Cached
from prism.layers.base.dropout import Dropout
from prism.layers.base.mixer import MixerConfig, State
from prism.layers.base.pace import Pace
from prism.ops.attention import causal_attention


@dataclass(frozen=True, kw_only=True)
class SasrecConfig(MixerConfig):
    """SASRec as published; its learned positions are the backbone's field `positions`."""

    from_model = ("dropout",)

    heads: Count = 1
    """Heads of the attention (published: 1)."""
    dropout: Fraction = 0.0
    """Rate of dropout on attention weights and after each map of the feed-forward (published: 0.2 on ML-1M)."""


@final
class Sasrec(Cached):
    """SASRec's block: norms come first and the residual branches start behind them, as in the authors' code."""

    Config = SasrecConfig
    whole_block = True
    needs_positions = True

    def __init__(self, dim: int, config: SasrecConfig):
        super().__init__(dim)
        self.config, self.H = config, config.heads
        self.K = self.V = config.head_size(dim, None, "heads to a divisor of dim")
        self.norm = nn.LayerNorm(dim, eps=1e-8)
        self.query = nn.Linear(dim, dim)
        # the authors' keys have a bias too, but it adds the same to all scores of a query: softmax does not see it
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.ffn_norm = nn.LayerNorm(dim, eps=1e-8)
        self.hidden = nn.Linear(dim, dim)
        self.ffn_out = nn.Linear(dim, dim)
        self.dropout = Dropout(config.dropout)

    def mix(self, x: Float[Tensor, "B T D"], state: State | None, pace: Pace) -> tuple[Float[Tensor, "B T D"], State]:
        packing, past = self.opened(pace, state)
        normed = self.norm(x)
        q, k, v = (y.unflatten(-1, (self.H, self.K)) for y in (self.query(normed), self.key(x), self.value(x)))
        rate = self.config.dropout if self.training else 0.0
        o, past = causal_attention(q, k, v, past=past, cu_seqlens=packing, dropout=rate)
        y = self.ffn_norm(normed + o.flatten(-2))
        y = y + self.dropout(self.ffn_out(self.dropout(F.relu(self.hidden(y)))))
        return y, (*past.kept, past.lengths)
