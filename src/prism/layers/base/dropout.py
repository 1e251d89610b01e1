"""Dropout: each number is 0 with probability p, else 1 / (1 − p) of what it was."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prism.ops.cpu import fused


@final
class Dropout(nn.Dropout):
    """In one compiled pass on a CPU, which draws a seed from torch's generator and the rest from that."""

    def forward(self, input: Tensor) -> Tensor:
        """The same shape; in evaluation the input itself."""
        if not self.training or not self.p:
            return input
        if not fused.usable(input):
            return F.dropout(input, self.p)
        return fused.dropout(input, self.p, int(torch.randint(1 << 62, ())))
