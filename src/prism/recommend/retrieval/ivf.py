"""Top-k by faiss: an inverted file over clusters of 8-bit rows (IVF-SQ8), and the same exact re-rank."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from prism.config import at_least, count
from prism.errors import InputError, needs
from prism.recommend.retrieval.int8 import Found


@dataclass(frozen=True)
class IvfIndex:
    """Rows by the nearest of `lists` centres; a query looks into the `probes` nearest ones."""

    table: Float[Tensor, "I D"]
    index: Any

    @classmethod
    def build(
        cls,
        table: Float[Tensor, "I D"],
        bias: Float[Tensor, " I"] | None = None,
        *,
        lists: int | None = None,
        probes: int | None = None,
    ) -> "IvfIndex":
        """`lists` is by default 4 √I, `probes` a sixteenth of them; items' offsets are refused: clusters know none."""
        needs("faiss", extra="faiss")
        import faiss

        if bias is not None:
            raise InputError("item_bias is not part of an inner product: use the int8 scan for such a model")
        rows = table.detach().cpu().float().contiguous()
        number = max(1, round(4 * len(rows) ** 0.5)) if lists is None else lists
        at_least("lists", number, 1)
        index: Any = faiss.index_factory(rows.shape[1], f"IVF{number},SQ8", faiss.METRIC_INNER_PRODUCT)
        index.train(rows[torch.randperm(len(rows))[: 64 * number]].numpy())
        index.add(rows.numpy())
        index.nprobe = max(1, number // 16) if probes is None else count("probes", probes)
        return cls(rows, index)

    def search(self, x: Float[Tensor, "Q D"], k: int, *, candidates: int | None = None) -> Found:
        """The k best of the items found, by exact scores; fewer than k: item −1 and score −∞."""
        x = x.detach().cpu().float().contiguous()
        kept = min(max(4 * k + 24 if candidates is None else candidates, k), len(self.table))
        _, items = self.index.search(x.numpy(), kept)
        some = torch.from_numpy(items)
        exact = torch.einsum("qd,qcd->qc", x, self.table[some.clamp(min=0)]).masked_fill(some < 0, -torch.inf)
        best, place = exact.topk(min(k, kept))
        return Found(best, some.gather(1, place))
