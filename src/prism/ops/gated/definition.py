"""The definition of the recurrence with a decay per channel, one token at a time, and where its faster forms are."""

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.packing import each_sequence
from prism.ops.gated.operands import Gated

MODULES = {"chunk": "prism.ops.gated.chunk", "cpu": "prism.ops.cpu.gated.backend"}


def reference(x: Gated) -> tuple[Tensor, Tensor]:
    """The definition, one token at a time."""
    if x.bounds is not None:
        return each_sequence(reference, x, x.bounds)
    S, width = x.S0, (x.v if x.side == "key" else x.k).shape[-1]
    o = [x.q.new_zeros(*x.q.shape[:1], 0, x.q.shape[2], width)]
    for t in range(x.q.shape[1]):
        o_t, S = one_token(x, t, S)
        o.append(o_t.unsqueeze(1))
    return torch.cat(o, 1), S


def one_token(x: Gated, t: int, S: Float[Tensor, "N H V K"]) -> tuple[Float[Tensor, "N H O"], Float[Tensor, "N H V K"]]:
    """One step of the recurrence, token t."""
    after = S * x.log_alpha[:, t].exp().unsqueeze(-2)
    if x.find is not None and x.erase is not None:
        after = after - torch.einsum("nhvk,nhk,nhj->nhvj", S, x.find[:, t], x.erase[:, t])
    S = after + x.v[:, t].unsqueeze(-1) * x.k[:, t].unsqueeze(-2)
    o = torch.einsum("nhvk,nhk->nhv" if x.side == "key" else "nhvk,nhv->nhk", S, x.q[:, t])
    return x.scale * o, S
