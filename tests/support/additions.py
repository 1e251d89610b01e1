"""Features to be added to logits, sparse as the loss takes them and dense as its definition does."""

import torch
from torch import Tensor

from prism.ops.additions import Additions


def draw_additions(N: int, items: int, K: int, F: int, dtype: torch.dtype = torch.float32) -> tuple[Additions, Tensor]:
    """K kinds of entries and F rows of a bank for each token, and the same as [N, K + F, items]; one token has none."""
    dense = torch.randn(N, K, items, dtype=dtype) * (torch.rand(N, K, items) < 0.4)
    dense[2] = 0
    token, kind, item = dense.nonzero(as_tuple=True)
    bank, rows = torch.randn(4, items, dtype=dtype), torch.randint(4, (N, F))
    starts = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(token, minlength=N).cumsum(0)])
    added = Additions(starts, item.int(), kind.to(torch.int8), dense[token, kind, item], bank, rows)
    return added, torch.cat([dense, bank[rows]], 1)
