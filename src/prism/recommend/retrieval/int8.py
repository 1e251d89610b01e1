"""Top-k by a scan of int8 rows, and an exact float32 re-rank of its candidates.

Row i is stored as s_i · c_i with c_i ∈ {−127 … 127}^D, a query likewise: score ≈ s_q s_i (c_q · c_i) + b_i. That reads
a quarter of the bytes of the float32 product, and keeps the `candidates` best of a query as it goes: no scores of all
items are ever written. The exact scores of the candidates decide.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from prism.config import count
from prism.ops.cpu.scan import LANES, packed, scan


class Found(NamedTuple):
    """The k best items of each query, best first."""

    scores: Float[Tensor, "Q k"]
    items: Int[Tensor, "Q k"]


@dataclass(frozen=True)
class Int8Index:
    """An item table twice: int8 rows to look through, float32 rows to decide by."""

    table: Float[Tensor, "I D"]
    bias: Float[Tensor, " I"] | None
    codes: NDArray[Any]
    """As the machine's scan wants them."""
    scales: NDArray[np.float32]

    @classmethod
    def build(cls, table: Float[Tensor, "I D"], bias: Float[Tensor, " I"] | None = None) -> "Int8Index":
        """From a model's item table, and its items' offsets where it has some."""
        rows = table.detach().cpu().float().contiguous()
        codes, scales = quantised(rows.numpy())
        own = None if bias is None else bias.detach().cpu().float()
        return cls(rows, own, packed(codes) if LANES else codes, scales)

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
        some = torch.from_numpy(scan(self.codes, self.scales, offsets, queries, sizes, kept)[1])
        exact = torch.einsum("qd,qcd->qc", x, self.table[some])
        if self.bias is not None:
            exact = exact + self.bias[some]
        best, place = exact.topk(k)
        return Found(best, some.gather(1, place))


def quantised(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows as int8, and the factor of each."""
    scales = np.maximum(np.abs(rows).max(1), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(rows / scales[:, None]).astype(np.int8), scales
