"""Token shift: x_{t-1} beside each x_t, with the last token of every sequence as its state."""

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.packing import Limits, Packing, on_device


def previous_token(
    x: Float[Tensor, "B T D"],
    *,
    last: Float[Tensor, "N D"] | None = None,
    cu_seqlens: Limits | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N D"]]:
    """The token before each one, and the last token of each sequence, which comes before what follows.

    Args:
        x: Tokens, one row per sequence, or packed into one row.
        last: What came before the first token of each sequence; None for zeros.
        cu_seqlens: Limits 0, …, T of packed sequences.
    """
    packing = Packing.of(cu_seqlens, x.shape[0], x.shape[1])
    if last is None:
        last = x.new_zeros(x.shape[0] if packing is None else len(packing), x.shape[-1])
    if x.shape[1] == 0:
        return x, last
    if packing is None:
        return torch.cat([last.unsqueeze(1), x[:, :-1]], 1), x[:, -1].clone()
    some = [n for n, length in enumerate(packing.lengths) if length]  # an empty sequence keeps what it had
    start, end = (on_device(tuple(packing.bounds[n + i] for n in some), x.device) for i in (0, 1))
    which = (on_device(tuple(some), x.device),)
    before = torch.cat([x[0, :1], x[0, :-1]]).index_put((start,), last[which])
    return before.unsqueeze(0), last.index_put(which, x[0, end - 1])
