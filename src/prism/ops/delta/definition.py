"""The definition of the recurrence, one token at a time, and where its faster forms are."""

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.packing import each_sequence
from prism.ops.delta.operands import Operands

MODULES = {
    "chunk": "prism.ops.delta.chunk",
    "cpu": "prism.ops.cpu.delta.backend",
    "triton": "prism.ops.triton.delta.backend",
}


def reference(x: Operands) -> tuple[Tensor, Tensor]:
    """The definition, one token at a time."""
    if x.bounds is not None:
        return each_sequence(reference, x, x.bounds)
    S, o = x.S0, []
    for t in range(x.q.shape[1]):
        o_t, S = one_token(x, t, S)
        o.append(o_t)
    return (torch.stack(o, 1) if o else x.v[:, :, :, 0]), S


def one_token(
    x: Operands, t: int, S: Float[Tensor, "N H V K"]
) -> tuple[Float[Tensor, "N H V"], Float[Tensor, "N H V K"]]:
    """Token t as the paper writes it (Eq. prism_update), or with an erasure for each direction."""
    q, k, v, beta, log_alpha, erase = (y[:, t] for y in x[:6])
    S = log_alpha.exp()[..., None, None] * S
    if erase.ndim == 3:
        for l in range(k.shape[2]):
            found = torch.einsum("nhvk,nhk->nhv", S, k[:, :, l])
            S = S + (beta[..., l, None] * v[:, :, l] - erase[..., l, None] * found)[..., None] * k[:, :, l, None]
        return x.scale * torch.einsum("nhvk,nhk->nhv", S, q), S
    k1 = k[:, :, 0]
    S = S - erase[..., None, None] * torch.einsum("nhvk,nhk,nhj->nhvj", S, k1, k1)  # forget
    S = S + torch.einsum("nhl,nhlv,nhlk->nhvk", beta, v, k)  # write B_t
    return x.scale * torch.einsum("nhvk,nhk->nhv", S, q), S
