"""The definition of the recurrence, one token at a time, and where its faster forms are."""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.delta.operands import Operands

MODULES = {
    "chunk": "prism.ops.delta.chunk",
    "cpu": "prism.ops.cpu.delta.backend",
    "triton": "prism.ops.triton.delta.backend",
}


def reference(x: Operands) -> tuple[Tensor, Tensor]:
    """The definition, one token at a time."""
    if x.bounds is not None:
        return _each_sequence(x, x.bounds)
    S, o = x.S0, []
    for t in range(x.q.shape[1]):
        o_t, S = one_token(*x.tokens(t), S, x.scale)
        o.append(o_t)
    return (torch.stack(o, 1) if o else x.v[:, :, :, 0]), S


def one_token(
    q: Float[Tensor, "N H K"],
    k: Float[Tensor, "N H L K"],
    v: Float[Tensor, "N H L V"],
    beta: Float[Tensor, "N H L"],
    log_alpha: Float[Tensor, "N H"],
    erase: Float[Tensor, "N H *each"],
    S: Float[Tensor, "N H V K"],
    scale: float,
) -> tuple[Float[Tensor, "N H V"], Float[Tensor, "N H V K"]]:
    """One step of the recurrence as the paper writes it (Eq. prism_update), or with an erasure for each direction."""
    S = log_alpha.exp()[..., None, None] * S
    if erase.ndim == 3:
        for l in range(k.shape[2]):
            found = torch.einsum("nhvk,nhk->nhv", S, k[:, :, l])
            S = S + (beta[..., l, None] * v[:, :, l] - erase[..., l, None] * found)[..., None] * k[:, :, l, None]
        return scale * torch.einsum("nhvk,nhk->nhv", S, q), S
    k1 = k[:, :, 0]
    S = S - erase[..., None, None] * torch.einsum("nhvk,nhk,nhj->nhvj", S, k1, k1)  # forget
    S = S + torch.einsum("nhl,nhlv,nhlk->nhvk", beta, v, k)  # write B_t
    return scale * torch.einsum("nhvk,nhk->nhv", S, q), S


def _each_sequence(x: Operands, bounds: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    o, S = [x.v[:, :0, :, 0]], [x.S0[:0]]
    for n, (a, b) in enumerate(pairwise(bounds)):
        o_n, S_n = reference(Operands(*x.tokens(slice(a, b)), x.S0[n : n + 1], x.scale, None))
        o.append(o_n)
        S.append(S_n)
    return torch.cat(o, 1), torch.cat(S)
