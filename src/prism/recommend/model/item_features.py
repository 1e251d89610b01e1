"""Item features: to item i's row is added Σ_columns mean of the rows of its values, in the input and in the scores."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.recommend.data.items import ItemValues


class ItemFeatures(nn.Module):
    """One row per value, shared by all items that have it."""

    values: Tensor
    weights: Tensor
    offsets: Tensor

    def __init__(self, of: ItemValues, dim: int):
        super().__init__()
        self.of = of
        # zero: training begins with the model that knows no features
        self.rows = nn.Embedding.from_pretrained(torch.zeros(len(of.names), dim), freeze=False)
        # the log has them: no checkpoint needs to
        self.register_buffer("values", torch.from_numpy(of.values), persistent=False)
        self.register_buffer("weights", torch.from_numpy(of.weights), persistent=False)
        self.register_buffer("offsets", torch.from_numpy(of.offsets), persistent=False)

    def forward(self) -> Float[Tensor, "I D"]:
        """What is added to each item's row."""
        rows = self.rows.weight
        return F.embedding_bag(
            self.values,
            rows,
            self.offsets,
            mode="sum",
            per_sample_weights=self.weights.to(rows.dtype),
            include_last_offset=True,
        )
