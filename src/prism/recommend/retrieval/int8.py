"""Top-k by a scan of int8 rows, and an exact float32 re-rank of its candidates.

Row i is stored as s_i · c_i with c_i ∈ {−127 … 127}^D, a query likewise: score ≈ s_q s_i (c_q · c_i) + b_i. That reads
a quarter of the bytes of the float32 product, and keeps the `candidates` best of a query as it goes: no scores of all
items are ever written. The exact scores of the candidates decide.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from prism.config import count
from prism.ops.cpu.compiling import loop

# Items scored at once: their rows stay in the first-level cache while queries take turns.
BLOCK = 256


class Found(NamedTuple):
    """The k best items of each query, best first."""

    scores: Float[Tensor, "Q k"]
    items: Int[Tensor, "Q k"]


@dataclass(frozen=True)
class Int8Index:
    """An item table twice: int8 rows to look through, float32 rows to decide by."""

    table: Float[Tensor, "I D"]
    bias: Float[Tensor, " I"] | None
    codes: NDArray[np.int8]
    scales: NDArray[np.float32]

    @classmethod
    def build(cls, table: Float[Tensor, "I D"], bias: Float[Tensor, " I"] | None = None) -> "Int8Index":
        """From a model's item table, and its items' offsets where it has some."""
        rows = table.detach().cpu().float().contiguous()
        codes, scales = quantised(rows.numpy())
        return cls(rows, None if bias is None else bias.detach().cpu().float(), codes, scales)

    @property
    def bytes(self) -> int:
        """That a query reads in the scan."""
        return self.codes.nbytes + self.scales.nbytes

    def search(self, x: Float[Tensor, "Q D"], k: int, *, candidates: int | None = None) -> Found:
        """The k best items; `candidates` (default: 4k + 24) are decided between by exact scores."""
        k = min(count("k", k), len(self.table))
        kept = min(max(4 * k + 24 if candidates is None else candidates, k), len(self.table))
        x = x.detach().cpu().float()
        queries, sizes = quantised(x.numpy())
        offsets = np.zeros(len(self.table), np.float32) if self.bias is None else self.bias.numpy()
        scores = np.full((len(x), kept), -np.inf, dtype=np.float32)
        items = np.zeros((len(x), kept), dtype=np.int64)
        _scan(self.codes, self.scales, offsets, queries.astype(np.int16), sizes, scores, items)
        some = torch.from_numpy(items)
        exact = torch.einsum("qd,qcd->qc", x, self.table[some])
        if self.bias is not None:
            exact = exact + self.bias[some]
        best, place = exact.topk(k)
        return Found(best, some.gather(1, place))


def quantised(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows as int8, and the factor of each."""
    scales = np.maximum(np.abs(rows).max(1), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(rows / scales[:, None]).astype(np.int8), scales


@loop
def _scan(codes, scales, offsets, queries, sizes, best, items):  # type: ignore[no-untyped-def]
    """best, items [Q, kept]: a heap for each query, its worst first."""
    sums, scores = np.empty(BLOCK, dtype=np.int32), np.empty(BLOCK, dtype=np.float32)
    for first in range(0, codes.shape[0], BLOCK):
        count = min(BLOCK, codes.shape[0] - first)
        for q in range(queries.shape[0]):
            for n in range(count):
                total = np.int32(0)
                for c in range(codes.shape[1]):
                    total = np.int32(total + np.int32(np.int32(codes[first + n, c]) * np.int32(queries[q, c])))
                sums[n] = total
            better, worst = 0, best[q, 0]
            for n in range(count):  # without a branch, so that it runs sixteen at a time
                scores[n] = np.float32(sums[n]) * scales[first + n] * sizes[q] + offsets[first + n]
                better += scores[n] > worst
            if better:
                for n in range(count):
                    if scores[n] > best[q, 0]:
                        _replace_worst(best[q], items[q], scores[n], first + n)


@loop
def _replace_worst(best, items, score, item):  # type: ignore[no-untyped-def]
    """Puts a better one in the place of the heap's worst."""
    at, size = 0, best.shape[0]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and best[child + 1] < best[child]:
            child += 1
        if best[child] >= score:
            break
        best[at], items[at] = best[child], items[child]
        at = child
    best[at], items[at] = score, item
