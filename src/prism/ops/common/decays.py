"""The decays between the tokens of a chunk: Γ_ij = e^{g_i − g_j} for i ≥ j, else 0, with g = cumsum(log α)."""

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.device import exact_dtype


def decay_matrix(log_alpha: Float[Tensor, "*n C"]) -> tuple[Float[Tensor, "*n C C"], Float[Tensor, "*n C"]]:
    """Γ in the dtype of log α, and g in the most exact one; a difference of sums, never a division by a decay."""
    C = log_alpha.shape[-1]
    # float64: two sums of 64 logarithms can be −800 each and differ by little
    g = log_alpha.cumsum(-1, dtype=exact_dtype(log_alpha.device))
    # masked before the exponential: above the diagonal g_i − g_j is positive and could overflow
    upper = torch.ones(C, C, dtype=torch.bool, device=g.device).triu(1)
    gamma = (g.unsqueeze(-1) - g.unsqueeze(-2)).to(log_alpha.dtype).masked_fill_(upper, -torch.inf).exp_()
    return gamma, g
