"""Token shift: x_{t-1} beside each x_t, with the last token of every sequence as its state."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def previous_token(
    x: Float[Tensor, "B T D"],
    *,
    last: Float[Tensor, "N D"] | None = None,
    cu_seqlens: Int[Tensor, " limits"] | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N D"]]:
    """The token before each one, and the last token of each sequence, which comes before what follows.

    Args:
        x: Tokens, one sequence a row, or packed into one row.
        last: What came before the first token of each sequence; None for zeros.
        cu_seqlens: Limits 0, …, T of packed sequences.
    """
    N = x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    if last is None:
        last = x.new_zeros(N, x.shape[-1])
    if x.shape[1] == 0:
        return x, last
    if cu_seqlens is None:
        return torch.cat([last.unsqueeze(1), x[:, :-1]], 1), x[:, -1].clone()
    limits = cu_seqlens.to(x.device, torch.long)
    start, end = limits[:-1], limits[1:]
    some = end > start  # an empty sequence keeps what it had
    before = torch.cat([x[0, :1], x[0, :-1]]).index_put((start[some],), last[some])
    return before.unsqueeze(0), torch.where(some.unsqueeze(1), x[0, (end - 1).clamp_min(0)], last)
