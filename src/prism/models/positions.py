"""Learned absolute positions: x_t + P_t, as SASRec has them; the state is how many tokens a sequence has had."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prism.layers.base.dropout import Dropout
from prism.layers.base.initial import initialise
from prism.layers.base.mixer import State
from prism.ops.common.packing import Packing, lengths_of
from prism.ops.common.ragged import positions


class Positions(nn.Module):
    """One vector per position. Tokens beyond the last share it, so that a stream need not end."""

    def __init__(self, count: int, dim: int, dropout: float):
        super().__init__()
        self.table = nn.Embedding(count, dim)
        self.dropout = Dropout(dropout)
        initialise(self)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        state: State | None,
        packing: Packing | None,
    ) -> tuple[Float[Tensor, "B T D"], State]:
        B, T, _ = x.shape
        bounds = None if packing is None else packing.bounds
        counts = torch.tensor(lengths_of(B, T, bounds), dtype=torch.long, device=x.device)
        if state is not None and state[0].shape != counts.shape:
            raise ValueError(f"state counts {len(state[0])} sequences, but x has {len(counts)}")
        before = None if state is None else state[0]
        place = positions(B, T, bounds, before, x.device).clamp(max=self.table.num_embeddings - 1)
        return self.dropout(x + self.table(place)), (counts if before is None else before + counts,)

    def step(self, x: Float[Tensor, "N D"], state: State | None) -> tuple[Float[Tensor, "N D"], State]:
        y, state = self(x.unsqueeze(1), state, None)
        return y.squeeze(1), state
