"""The recurrence forward, a chunk at a time, for a range of (sequence, head) pairs; compiled."""

import numpy as np

from prism.ops.cpu.compiling import inner, kernel
from prism.ops.cpu.delta.chunk import advance, load, prepare, write
from prism.ops.cpu.shared import KEEP, C, copy_state, copy_state_t
from prism.ops.cpu.tile import add_product


@inner
def _read(x, o, first, count, h, scale):  # type: ignore[no-untyped-def]
    """O = e^g Q Sᵀ + P Y to where the caller wants it."""
    O = x.Z[0, :C]
    add_product(O, x.PK[0], x.Y[0], 0)
    for c in range(count):
        for i in range(o.shape[2]):
            o[first + c, h, i] = scale * O[c, i]


@kernel
def forward_range(x, tokens, bounds, S0, scale, o, S_end, kept, kept_at, begin, end):  # type: ignore[no-untyped-def]
    """Outputs and final states of pairs begin, …, end − 1, in the scratch memory x.

    Sequence n runs from token bounds[n] to bounds[n + 1]; its state before token 64·j goes to kept[kept_at[n] + j − 1],
    unless there is no place for it.
    """
    H, S, only = S0.shape[1], x.S[0], np.int64(0)
    for pair in range(begin, end):
        n, h = pair // H, pair % H
        copy_state_t(S, S0[n, h])
        for t in range(bounds[n], bounds[n + 1], C):
            count = min(C, bounds[n + 1] - t)
            j = (t - bounds[n]) // KEEP
            if kept.shape[0] > 0 and j > 0 and (t - bounds[n]) % KEEP == 0:
                copy_state(kept[kept_at[n] + j - 1, h], S)
            load(x, only, tokens, t, count, h)
            prepare(x, only)
            write(x, only, S)
            _read(x, o, t, count, h, scale)
            advance(x, only, S)
        copy_state_t(S_end[n, h], S)
