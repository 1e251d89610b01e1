"""The item table with its rows on several processes: each row has one owner, which answers for it and learns it."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.ops.sharded.rows import Rows, lookup
from prism.train.shards import Sharded

# Rows that one seed draws: whoever has some of them draws them all, so that weights do not depend on the processes.
DRAWN = 4096


class ShardedTable(Sharded):
    """This process's rows; those of others are looked up."""

    def __init__(self, rows: Rows, dim: int, seed: int):
        super().__init__()
        self.rows = rows
        self.weight = nn.Parameter(_drawn(rows, dim, seed))

    def forward(self, ids: Int[Tensor, " U"]) -> Float[Tensor, "U D"]:
        """Rows by their ids; all processes ask together."""
        return lookup(self.weight, ids, self.rows)


def _drawn(rows: Rows, dim: int, seed: int) -> Tensor:
    """Rows of length about 1, as `initialise` has them."""
    first, end = rows.range()
    made = torch.empty(end - first, dim)
    for block in range(first // DRAWN, -(-end // DRAWN)):
        number = int(np.random.SeedSequence((seed, block)).generate_state(1, np.uint64)[0] >> np.uint64(1))
        drawn = torch.randn(DRAWN, dim, generator=torch.Generator().manual_seed(number)) * dim**-0.5
        a, b = max(first, block * DRAWN), min(end, (block + 1) * DRAWN)
        made[a - first : b - first] = drawn[a - block * DRAWN : b - block * DRAWN]
    return made
