"""Products of rows under a decay per channel, M_ij = Σ_c x_ic y_jc e^{g_ic − g_jc} for i ≥ j, by halving the chunk.

Take two neighbouring blocks of s tokens. For i in the right one and j in the left one the decay splits at the border
between them: from the border to i, times from j to the border. Both factors are at most 1, and with them the block of
M is one matrix product. Neighbours then join to blocks of 2s, whose rows need one more factor: rows of x in the right
half decay over the left half, rows of y in the left half over the right. From s = 1 to the whole chunk:

    M[right, left] = X_right Y_leftᵀ        X_right ← X_right e^{Σ_left log α}        Y_left ← Y_left e^{Σ_right log α}

Nothing is divided by a decay and no positive number is exponentiated; sums of logarithms have one sign, so nothing
cancels either. At the end X holds e^g x and Y holds e^{g_C − g} y, what the states before and after the chunk meet.
The way back has the same shape, and gives each block the gradient of its own log α: again no differences of sums.

There are G rows per token on each side. Row 0 of x is read after the token's own decay and meets its own y (a query);
row 1 is read before, and meets only what came earlier (a search).
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Level(NamedTuple):
    """Two blocks of s tokens about to join, everywhere in the chunk; b: pairs of blocks."""

    left: Tensor  # [N, b, 1, K]: the decay over the left block
    right: Tensor  # [N, b, 1, K]: the decay over the right block
    X: Tensor | None  # [N, b, s·G, K]: rows of x in the right block
    Y: Tensor  # [N, b, s·G, K]: rows of y in the left block


class Climb(NamedTuple):
    """What the way up leaves. N: chunks × heads."""

    M: Tensor | None  # [N, G, C, G, C]: zero above the diagonal
    X: Tensor | None  # [N, C, G, K]: decayed from the chunk's start
    Y: Tensor  # [N, C, G, K]: decayed to the chunk's end
    total: Tensor  # [N, K]: e^{g_C}
    levels: list[Level]  # from s = 1 up; empty unless asked for


def climb(x: Tensor | None, y: Tensor, log_alpha: Tensor, *, keep: bool) -> Climb:
    """From single tokens to the chunk. x, y: [N, C, G, K], C a power of two; log_alpha: [N, C, K].

    Without x only Y and the levels are made; `keep` holds the levels for the way down.
    """
    N, C, G, K = y.shape
    Y, X, M, levels = y.clone(), None, None, []
    if x is not None:
        X = x.clone()
        X[:, :, 0] *= log_alpha.exp()
        M = x.new_zeros(N, G, C, G, C)
        M[:, 0].diagonal(dim1=1, dim2=3).copy_(torch.einsum("nck,ncgk->ngc", x[:, :, 0], y))
    s = 1
    while s < C:
        pair = log_alpha.view(N, -1, 2, 1, K)
        left, right = pair.exp().unbind(2)
        Y_left, X_right = _halves(Y, s)[:, :, 0], None
        if X is not None and M is not None:
            X_right = _halves(X, s)[:, :, 1]
            product = X_right.flatten(0, 1) @ Y_left.flatten(0, 1).mT
            _blocks(M, s).copy_(product.view(N, -1, s, G, s, G))
        if keep:
            levels.append(Level(left, right, None if X_right is None else X_right.clone(), Y_left.clone()))
        if X_right is not None:
            X_right *= left
        Y_left *= right
        log_alpha, s = pair.sum((2, 3)), 2 * s
    return Climb(M, X, Y, log_alpha.exp().squeeze(1), levels)


def spread(up: Climb, W: Tensor, O: Tensor, y: Tensor, log_alpha: Tensor) -> Tensor:
    """O_i e^{g_i} + Σ_{j≤i} W_ij y_j e^{g_i − g_j}: the decay meets what is read. W: [N, C, C]; O: [N, C, K]."""
    N, C, _ = O.shape
    W = W.view(N, 1, C, 1, C)
    O = O.clone().unsqueeze(2)
    for level in reversed(up.levels):
        s = level.Y.shape[2]
        part = _halves(O, s)[:, :, 1]
        part.mul_(level.left).add_(_block(W, s) @ level.Y)
    return O.squeeze(2) * log_alpha.exp() + W[:, 0, :, 0].diagonal(dim1=1, dim2=2).unsqueeze(-1) * y


def descend(
    up: Climb, x: Tensor, y: Tensor, log_alpha: Tensor, dM: Tensor, dX: Tensor, dY: Tensor, dtotal: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, y and log α from those of M, X, Y and the total, all of which it may overwrite."""
    dlog = (up.total * dtotal).unsqueeze(1)
    for level in reversed(up.levels):
        assert level.X is not None
        s = level.Y.shape[2] // y.shape[2]
        dX_right, dY_left = _halves(dX, s)[:, :, 1], _halves(dY, s)[:, :, 0]
        block = _block(dM, s)
        dX_right *= level.left
        dY_left *= level.right
        own = torch.stack([(dX_right * level.X).sum(2), (dY_left * level.Y).sum(2)], 2)
        dlog = (dlog.unsqueeze(2) + own).flatten(1, 2)
        dX_right += block @ level.Y
        dY_left += block.mT @ level.X
    q, dq = x[:, :, 0], dX[:, :, 0]
    dq *= log_alpha.exp()
    dlog += q * dq
    own_token = dM[:, 0].diagonal(dim1=1, dim2=3).transpose(1, 2).unsqueeze(-1)  # [N, C, G, 1]
    dq += (own_token * y).sum(2)
    dY += own_token * q.unsqueeze(2)
    return dX, dY, dlog


def _halves(x: Tensor, s: int) -> Tensor:
    """[N, C, G, K] as [N, b, 2, s·G, K]: pairs of blocks of s tokens."""
    N, C, G, K = x.shape
    return x.view(N, C // (2 * s), 2, s * G, K)


def _blocks(M: Tensor, s: int) -> Tensor:
    """Of [N, G, C, G, C], for each pair of blocks the rows of the right and columns of the left: [N, b, s, G, s, G]."""
    N, G, C = M.shape[:3]
    pairs = M.view(N, G, -1, 2 * s, G, C // (2 * s), 2 * s).diagonal(dim1=2, dim2=5)
    return pairs[:, :, s:, :, :s].permute(0, 5, 2, 1, 4, 3)


def _block(M: Tensor, s: int) -> Tensor:
    """The same as matrices: [N, b, s·G, s·G]."""
    return _blocks(M, s).flatten(4, 5).flatten(2, 3)
