"""A mixture of the model and the simple experts: p(i | h) = Σ_e g_e(h) p_e(i | h), the gates g learned.

The gates are a softmax of a small map of the model's features and of what can be counted: how many events and
distinct items, how repeat-prone the user is, how long since the last event, how much the experts have to go by.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prism.recommend.model.experts import EXPERTS
from prism.recommend.model.experts.kernels import CONTEXT, WEIGHTS

HIDDEN = 32


class Gates(nn.Module):
    """log g over the model and the experts, the model first; −∞ where an expert has nothing to say."""

    chosen: Tensor
    repeats: Tensor

    def __init__(self, dim: int, experts: Sequence[str]):
        super().__init__()
        self.features = nn.Linear(dim, HIDDEN, bias=False)
        self.context = nn.Linear(CONTEXT, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1 + len(EXPERTS))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.register_buffer("chosen", torch.tensor([name in experts for name in EXPERTS]), persistent=False)
        # of the repeat expert's score; kept with the weights, because they too are fitted
        self.register_buffer("repeats", torch.zeros(WEIGHTS, dtype=torch.float64))

    def forward(
        self, x: Float[Tensor, "N D"], contexts: Float[Tensor, "N F"], masses: Float[Tensor, "N E"]
    ) -> Float[Tensor, "N gates"]:
        """Token by token."""
        x, contexts = x.to(self.features.weight.dtype), contexts.to(self.features.weight.dtype)
        logits = self.out(F.silu(self.features(x) + self.context(contexts)))
        return logits.masked_fill(self._silent(masses), -torch.inf).log_softmax(1)

    def _silent(self, masses: Tensor) -> Bool[Tensor, "N gates"]:
        return F.pad((masses <= 0) | ~self.chosen, (1, 0), value=False)


def beside(gates: Float[Tensor, "N gates"], chances: Float[Tensor, "N E"]) -> Float[Tensor, " N"]:
    """log Σ_e g_e p_e / g_model over the experts: what `softmax_loss` adds to the model's own probability."""
    others = torch.where(chances > 0, gates[:, 1:], -torch.inf) + chances.clamp(min=1e-30).log()
    # −∞ − −∞ has no gradient: tokens of which no expert knows anything are given a number that is as good as −∞
    known = others.amax(1, keepdim=True) > -torch.inf
    return torch.where(known, others, -80.0).logsumexp(1) - gates[:, 0]
