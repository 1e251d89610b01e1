"""The weights of the simple experts: score(i | h) = ⟨x_h, e_i⟩ + Σ_k c_k(h) f_k(i | h), the weights c learned.

They are a small map of the model's features and of what can be counted: how many events and distinct items, how
repeat-prone the user is, how long since the last event, how much the experts have to go by.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.recommend.model.experts.entries import KINDS
from prism.recommend.model.experts.gates import BARRED, GateWeights
from prism.recommend.model.experts.habits import WEIGHTS
from prism.recommend.model.experts.kernels import CONTEXT

HIDDEN = 32
# Features that an expert of another name brings.
WITH = {"own": "repeat", "unprompted": "next"}


class Gates(nn.Module):
    """c over the kinds of features (`KINDS`); 0 for an expert that was not chosen."""

    chosen: Tensor
    barred: Tensor
    repeats: Tensor

    def __init__(self, dim: int, experts: Sequence[str]):
        super().__init__()
        self.features = nn.Linear(dim, HIDDEN, bias=False)
        self.context = nn.Linear(CONTEXT, HIDDEN)
        self.out = nn.Linear(HIDDEN, len(KINDS))
        # at first the context alone decides: `training/opening.py` fits it before the model knows anything
        for weight in (self.features.weight, self.out.weight, self.out.bias):
            nn.init.zeros_(weight)
        self.register_buffer(
            "chosen", torch.tensor([WITH.get(kind, kind) in experts for kind in KINDS]), persistent=False
        )
        self.register_buffer("barred", torch.tensor(False))
        # of the repeat expert's score; kept with the weights, because they too are fitted
        self.register_buffer("repeats", torch.zeros(WEIGHTS, dtype=torch.float64))

    def arrays(self) -> GateWeights:
        """The same numbers for compiled loops; on a CPU no copies, so that they are always those of now."""
        maps = self.features.weight, self.context.weight, self.context.bias, self.out.weight, self.out.bias
        parts = [part.detach().cpu().numpy() for part in (*maps, self.chosen)]
        return GateWeights._make([*parts, bool(self.barred)])

    def forward(self, x: Float[Tensor, "N D"], contexts: Float[Tensor, "N C"]) -> Float[Tensor, "N K"]:
        x, contexts = x.to(self.features.weight.dtype), contexts.to(self.features.weight.dtype)
        found = self.out(F.silu(self.features(x) + self.context(contexts)))
        found = torch.where(self.chosen, found, 0.0)
        own = torch.where(self.barred, BARRED, found[:, :1])
        return torch.cat([own, found[:, 1:]], 1)
