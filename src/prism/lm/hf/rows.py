"""Where the sequences of a batch lie: rows with padding, rows that hold several sequences, or both."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows whose real tokens, one row after another, make packed sequences."""

    keep: Bool[Tensor, "B T"]
    """Which tokens are real."""
    cu_seqlens: Int[Tensor, " limits"]
    """Where sequences begin among the real tokens, and where the last one ends."""
    packed: bool
    """Whether a row may hold more than one sequence."""

    def pack(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "1 N D"]:
        return x[self.keep].unsqueeze(0)

    def unpack(self, y: Float[Tensor, "1 N D"]) -> Float[Tensor, "B T D"]:
        """Back in their places, zeros where there was padding."""
        rows = y.new_zeros(*self.keep.shape, y.shape[-1])
        rows[self.keep] = y[0]
        return rows


def arrange(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cu_seq_lens: Int[Tensor, " limits"] | None,
    x: Float[Tensor, "B T D"],
) -> Rows | None:
    """Reads what the library may say about a batch; None if every row is one sequence without padding.

    Args:
        attention_mask: [B, T or more], 0 where there is padding; its last T columns are these tokens.
        position_ids: [B or 1, T]; a sequence begins wherever they do not grow.
        cu_seq_lens: Where sequences begin in a single row, and its end; then position_ids are not looked at.
        x: The tokens.
    """
    B, T, _ = x.shape
    keep = _real(attention_mask, x)
    if cu_seq_lens is not None:
        if B != 1 or keep is not None or int(cu_seq_lens[0]) != 0 or int(cu_seq_lens[-1]) != T:
            raise ValueError(
                f"cu_seq_lens_q must run from 0 to the length of a single row without padding; "
                f"got {int(cu_seq_lens[0])} to {int(cu_seq_lens[-1])} for rows of shape {[B, T]}"
            )
        return Rows(keep=torch.ones(B, T, dtype=torch.bool, device=x.device), cu_seqlens=cu_seq_lens, packed=True)
    if position_ids is not None:
        real = torch.ones(B, T, dtype=torch.bool, device=x.device) if keep is None else keep
        starts = _starts(position_ids, real)
        if len(starts) > int(real.any(1).sum()):
            limits = torch.nn.functional.pad(starts, (0, 1), value=int(real.sum()))
            return Rows(keep=real, cu_seqlens=limits, packed=True)
    if keep is None:
        return None
    limits = torch.nn.functional.pad(keep.sum(1).cumsum(0), (1, 0))  # a row of padding alone is an empty sequence
    return Rows(keep=keep, cu_seqlens=limits, packed=False)


def _real(attention_mask: Tensor | None, x: Float[Tensor, "B T D"]) -> Bool[Tensor, "B T"] | None:
    """Which tokens are real; None if all are."""
    if attention_mask is None:
        return None
    B, T, _ = x.shape
    if attention_mask.ndim != 2 or len(attention_mask) != B or attention_mask.shape[1] < T:
        raise ValueError(f"attention_mask must be [{B}, {T} or more], got {list(attention_mask.shape)}")
    keep = attention_mask[:, attention_mask.shape[1] - T :].bool()
    return None if keep.all() else keep


def _starts(position_ids: Tensor, real: Bool[Tensor, "B T"]) -> Int[Tensor, " sequences"]:
    """Where sequences begin among the real tokens: with each row, and where positions do not grow."""
    B, T = real.shape
    if position_ids.ndim != 2 or len(position_ids) not in (1, B) or position_ids.shape[1] != T:
        raise ValueError(f"position_ids must be [{B} or 1, {T}], got {list(position_ids.shape)}")
    positions = position_ids.expand(B, T)[real]
    row = real.nonzero()[:, 0]
    first = torch.ones_like(row, dtype=torch.bool)
    first[1:] = (row[1:] != row[:-1]) | (positions[1:] <= positions[:-1])
    return first.nonzero().flatten()
