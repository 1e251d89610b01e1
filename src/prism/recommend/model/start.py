"""Where the item table starts: singular vectors of the training log's positive pointwise mutual information.

PMI(i, j) = log(n_ij · n / (n_i · n_j)), n_ij how often i and j stand at most `reach` events apart in one history; where
it is positive it is a matrix whose first singular vectors, by the roots of their values, place items that are taken
together near each other. A function of the training events alone.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from prism.recommend.data.log import Ints, Log

# More vectors than are asked for, and products by the matrix, that make the first ones exact enough.
SPARE, ITERATIONS = 16, 4


def cooccurrence_rows(train: Log, dim: int, *, reach: int = 5) -> Float[Tensor, "I D"]:
    """One row per item, of length 1 in the mean square; zero for an item that no other one stands near.

    The singular vectors are found from torch's generator: seed it.
    """
    information = _positive_information(train, reach)
    wanted = min(dim, train.n_items)
    vectors, values, _ = torch.svd_lowrank(information, min(wanted + SPARE, train.n_items), niter=ITERATIONS)
    rows = torch.zeros(train.n_items, dim)
    rows[:, :wanted] = (vectors[:, :wanted] * values[:wanted].sqrt()).float()
    return rows / rows.square().sum(1).mean().sqrt().clamp(min=torch.finfo(rows.dtype).tiny)


def _positive_information(train: Log, reach: int) -> Tensor:
    """[items, items] sparse, symmetric: PMI where it is above 0."""
    n = np.int64(train.n_items)
    keys, counts = _pairs(train, reach)
    first, second = keys // n, keys % n
    each = np.bincount(first, weights=counts, minlength=train.n_items)
    information = np.log(counts * each.sum() / (each[first] * each[second]))
    kept = information > 0
    places = torch.from_numpy(np.stack([first[kept], second[kept]]))
    values = torch.from_numpy(information[kept])
    return torch.sparse_coo_tensor(places, values, (train.n_items, train.n_items), check_invariants=False).coalesce()


def _pairs(train: Log, reach: int) -> tuple[Ints, Ints]:
    """(i · items + j, count) of ordered pairs of different items at most `reach` apart, each way round."""
    users, n = train.users, np.int64(train.n_items)
    found = []
    for apart in range(1, reach + 1):
        together = np.flatnonzero(users[apart:] == users[:-apart])
        a, b = train.items[together].astype(np.int64), train.items[together + apart].astype(np.int64)
        different = a != b
        a, b = a[different], b[different]
        found += [a * n + b, b * n + a]
    keys, counts = np.unique(np.concatenate(found), return_counts=True)
    return keys, counts


@torch.no_grad()
def start_from_cooccurrences(table: Float[Tensor, "J D"], train: Log, seed: int) -> None:
    """Puts each item's row of `cooccurrence_rows` into the table; one that has none keeps what it has."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rows = cooccurrence_rows(train, table.shape[1])
    found = rows.any(1)
    table[: len(rows)][found] = rows[found]
