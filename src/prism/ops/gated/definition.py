"""The definition of the recurrence with a decay per channel, one token at a time, and where its faster forms are."""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.gated.operands import Gated, Side

MODULES = {"chunk": "prism.ops.gated.chunk", "cpu": "prism.ops.cpu.gated.backend"}


def reference(x: Gated) -> tuple[Tensor, Tensor]:
    """The definition, one token at a time."""
    if x.bounds is not None:
        return _each_sequence(x, x.bounds)
    S, width = x.S0, (x.v if x.side == "key" else x.k).shape[-1]
    o = [x.q.new_zeros(*x.q.shape[:1], 0, x.q.shape[2], width)]
    for t in range(x.q.shape[1]):
        token = (None if y is None else y[:, t] for y in x[:6])
        o_t, S = one_token(*token, S=S, scale=x.scale, side=x.side)  # type: ignore[arg-type, misc]
        o.append(o_t.unsqueeze(1))
    return torch.cat(o, 1), S


def _each_sequence(x: Gated, bounds: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    o, S = [reference(x.part(0, 0, slice(0)))[0]], [x.S0[:0]]
    for n, (a, b) in enumerate(pairwise(bounds)):
        o_n, S_n = reference(x.part(a, b, slice(n, n + 1)))
        o.append(o_n)
        S.append(S_n)
    return torch.cat(o, 1), torch.cat(S)


def one_token(
    q: Float[Tensor, "N H Q"],
    k: Float[Tensor, "N H K"],
    v: Float[Tensor, "N H V"],
    log_alpha: Float[Tensor, "N H K"],
    find: Float[Tensor, "N H K"] | None,
    erase: Float[Tensor, "N H K"] | None,
    S: Float[Tensor, "N H V K"],
    scale: float,
    side: Side,
) -> tuple[Float[Tensor, "N H O"], Float[Tensor, "N H V K"]]:
    """One step of the recurrence."""
    after = S * log_alpha.exp().unsqueeze(-2)
    if find is not None and erase is not None:
        after = after - torch.einsum("nhvk,nhk,nhj->nhvj", S, find, erase)
    S = after + v.unsqueeze(-1) * k.unsqueeze(-2)
    o = torch.einsum("nhvk,nhk->nhv" if side == "key" else "nhvk,nhv->nhk", S, q)
    return scale * o, S
