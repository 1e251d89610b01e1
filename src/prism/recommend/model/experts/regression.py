"""What each item says of every other one, all others held the same: the ridge regression of EASE (Steck, 2019).

With G = Xᵀ X over users and P = (G + λ I)⁻¹: B_ij = −P_ij / P_jj, and 0 on the diagonal.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prism.ops.cpu.compiling import loop
from prism.recommend.data.log import Ints, Log

# Items that are regressed on one another, the most taken: memory grows with their square, time with their cube.
MOST_ITEMS = 4096
# Distinct items of a user that count, the latest.
LATEST = 200
# λ: so many users more than there are must have an item before half of what it seems to say is believed.
RIDGE = 300.0


def regressed(gram: Tensor, ridge: float) -> Tensor:
    """B [items, items]; row i is what having item i says of each other one. `gram` is used up."""
    inverse = gram.add_(torch.eye(len(gram), dtype=gram.dtype), alpha=ridge)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(inverse)).T.contiguous()  # rows are read, one per item
    return inverse.div_(-inverse.diagonal().clone()).fill_diagonal_(0.0)


def most_taken(counts: Ints) -> Ints:
    """The items that are regressed, in order; of equally many events the first."""
    return np.sort(np.argsort(-counts, kind="stable")[:MOST_ITEMS])


class Company:
    """G, users who have both of two items, among the most taken ones; in parts that are added up."""

    def __init__(self, chosen: Ints, items: int):
        self.chosen = chosen
        self.place = np.full(items, -1, dtype=np.int32)
        self.place[chosen] = np.arange(len(chosen))
        self.gram = np.zeros((len(chosen), len(chosen)), dtype=np.int32)

    def add(self, log: Log) -> None:
        """The users of a log."""
        _count_pairs(log.offsets, self.place[log.items], LATEST, self.gram)

    def rows(self, gram: NDArray[np.int32], kept: int) -> tuple[Ints, NDArray[np.int32], NDArray[np.float32]]:
        """(starts, columns, weights) of each item's row of B, the largest first, as far as they are above 0.

        A row goes on after what is read of it (`kernels.TOGETHER_READ`), so the order matters.
        """
        # float64: counts of very many users are too far above the ridge for less
        weights = regressed(torch.from_numpy((gram + np.tril(gram, -1).T).astype(np.float64)), RIDGE).float()
        values, places = (part.numpy() for part in weights.topk(min(kept, len(gram)), dim=1))
        held = values > 0
        starts = np.zeros(len(self.place) + 1, dtype=np.int64)
        starts[self.chosen + 1] = held.sum(1)
        return np.cumsum(starts), self.chosen[places[held]].astype(np.int32), values[held]


@loop
def _count_pairs(offsets, places, latest, gram):  # type: ignore[no-untyped-def]
    """gram[a, b] += 1, b ≤ a, for every two of a user's distinct items, the `latest` of them; -1 is none."""
    seen, mine = np.zeros(len(gram), dtype=np.bool_), np.empty(latest, dtype=np.int64)
    for u in range(len(offsets) - 1):
        size, t = 0, offsets[u + 1] - 1
        while t >= offsets[u] and size < latest:
            if places[t] >= 0 and not seen[places[t]]:
                seen[places[t]] = True
                mine[size] = places[t]
                size += 1
            t -= 1
        mine[:size].sort()
        for a in range(size):
            seen[mine[a]] = False
            for b in range(a + 1):
                gram[mine[a], mine[b]] += 1
