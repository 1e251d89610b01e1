"""The recurrence with a decay per channel in chunks of C tokens, exact, as batched products; backward by hand.

Inside a chunk with incoming state S (rows = tokens; bars: decayed from the chunk's start, `_end`: to its end; P, A:
products under the decay, from `gated_tree`), Y = [V; U] what each token adds along k and, with U = −S_{t-1} f_t, e:

    (I + A_e) U = −A_k V − F̄ Sᵀ          A = [A_k, A_e]: searches f_i against earlier k_j and e_j
    O = Q̄ Sᵀ + P Y                        P = [P_k, P_e]: queries against k_j and e_j up to their own
    S' = S diag(e^{g_C}) + Yᵀ [K_end; E_end]

U = X_v + X_f Sᵀ makes S' = S T + D with T and D known before any state. Without erasure U, A and T are not there.

Reading from the value side swaps two roles: ⟨b, S a⟩ is linear in a (as wide as a key) and in b (as wide as a value),
so a read S q has a = q and its gradient puts b = do; a read Sᵀ q has b = q and its gradient puts a = do.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from prism.ops.common.autograd import once
from prism.ops.common.layout import Layout, heads_first, layout_of, tokens_first
from prism.ops.common.packing import Bounds, lengths_of
from prism.ops.gated.operands import Gated
from prism.ops.gated.tree import Climb, climb, descend, spread

CHUNK = 64


def forward(x: Gated, chunk_size: int = CHUNK) -> tuple[Tensor, Tensor]:
    """The outputs and the final states; differentiable in every tensor."""
    o, S = _Chunked.apply(x.S0, x.scale, x.side, x.bounds, chunk_size, *x.tokens())  # type: ignore[misc]
    return o, S


class _Group(NamedTuple):
    """The part of a group of chunks that no state enters. N: chunks × heads."""

    x: Tensor | None  # [N, C, G, K]: a, and f
    y: Tensor  # [N, C, G, K]: k, and e
    V: Tensor  # [N, C, V]
    log_alpha: Tensor  # [N, C, K]
    up: Climb
    X: Tensor | None  # [N, C, V+K]: X_v and X_f side by side
    T: Tensor | None  # [N, K, K]


def _prepare(tokens: list[Tensor], a: Tensor | None, keep: bool) -> _Group:
    _, k, v, log_alpha, *erasure = tokens
    y = torch.stack([k, *erasure[1:]], 2)
    x = None if a is None else torch.stack([a, *erasure[:1]], 2)
    up = climb(x, y, log_alpha, keep=keep)
    if not erasure:
        return _Group(x, y, v, log_alpha, up, None, None)
    assert up.M is not None
    assert up.X is not None
    A = up.M[:, 1]
    right = torch.cat([A[:, :, 0] @ v, up.X[:, :, 1]], -1).neg_()
    X = torch.linalg.solve_triangular(A[:, :, 1], right, upper=False, unitriangular=True)
    T = X[..., v.shape[-1] :].mT @ up.Y[:, :, 1]
    T.diagonal(dim1=-2, dim2=-1).add_(up.total)
    return _Group(x, y, v, log_alpha, up, X, T)


def _walk(x: _Group, S: Tensor, running: list[int]) -> tuple[Tensor, Tensor]:
    """The loop over chunks: the state before each chunk, and the states of all sequences after."""
    H, V = S.shape[1], x.V.shape[-1]
    D = x.V.mT @ x.up.Y[:, :, 0]
    if x.X is not None:
        D += x.X[..., :V].mT @ x.up.Y[:, :, 1]
    before = torch.empty_like(D)
    a, S = 0, S.flatten(0, 1)
    for n in running:
        b = a + n * H
        before[a:b] = S[: n * H]
        S = torch.cat([_carry(x, S[: n * H], D, a, b), S[n * H :]])
        a = b
    return before, S.unflatten(0, (-1, H))


def _walk_back(x: _Group, b: Tensor, dS: Tensor, running: list[int]) -> tuple[Tensor, Tensor]:
    """The loop backwards: the gradient of the state after each chunk, and of the states before all."""
    assert x.up.X is not None
    H, V = dS.shape[1], x.V.shape[-1]
    local = b.mT @ x.up.X[:, :, 0]
    if x.X is not None and x.up.M is not None:
        local += (x.up.M[:, 0, :, 1].mT @ b).mT @ x.X[..., V:]
    after = torch.empty_like(local)
    end, dS = local.shape[0], dS.flatten(0, 1)
    for n in reversed(running):
        start = end - n * H
        after[start:end] = dS[: n * H]
        dS = torch.cat([_carry(x, dS[: n * H], local, start, end, back=True), dS[n * H :]])
        end = start
    return after, dS.unflatten(0, (-1, H))


def _carry(x: _Group, S: Tensor, D: Tensor, a: int, b: int, *, back: bool = False) -> Tensor:
    """S T + D (or S Tᵀ + D) for chunks × heads a, …, b − 1."""
    if x.T is None:
        return torch.addcmul(D[a:b], S, x.up.total[a:b].unsqueeze(1))
    return torch.baddbmm(D[a:b], S, x.T[a:b].mT if back else x.T[a:b])


def _writes(x: _Group, S: Tensor) -> Tensor:
    """Y = [V; U], given the chunk's S."""
    if x.X is None:
        return x.V
    V = x.V.shape[-1]
    return torch.cat([x.V, torch.baddbmm(x.X[..., :V], x.X[..., V:], S.mT)], 1)


def _read(x: _Group, S: Tensor, Y: Tensor) -> Tensor:
    """S_t a_t for every token."""
    assert x.up.M is not None
    assert x.up.X is not None
    return torch.baddbmm(x.up.M[:, 0].flatten(2) @ Y, x.up.X[:, :, 0], S.mT)


def _read_value(x: _Group, S: Tensor, b: Tensor) -> Tensor:
    """S_tᵀ b_t for every token."""
    return spread(x.up, b @ x.V.mT, b @ S, x.y[:, :, 0], x.log_alpha)


def _grads(x: _Group, b: Tensor, S: Tensor, Y: Tensor, dS: Tensor) -> list[Tensor]:
    """Gradients of a, k, v, log α (f, e) for ⟨b_t, S_t a_t⟩ and dS, the gradient of the state after each chunk."""
    assert x.x is not None
    assert x.up.M is not None
    N, C = b.shape[:2]
    ends, P = x.up.Y, x.up.M[:, 0]
    dX, dY = [b @ S], [x.V @ dS]
    dM = [b @ Y.mT]
    dV = torch.baddbmm(ends[:, :, 0] @ dS.mT, P[:, :, 0].mT, b)
    if x.X is not None:
        dU = torch.baddbmm(ends[:, :, 1] @ dS.mT, P[:, :, 1].mT, b)
        A = x.up.M[:, 1]
        # minus the gradient of the right-hand side
        dR = torch.linalg.solve_triangular(A[:, :, 1].mT, dU, upper=True, unitriangular=True).neg_()
        dV += A[:, :, 0].mT @ dR
        dM.append(dR @ Y.mT)
        dX.append(dR @ S)
        dY.append(Y[:, C:] @ dS)
    G = len(dM)
    dx, dy, dlog = descend(
        x.up,
        x.x,
        x.y,
        x.log_alpha,
        torch.stack(dM, 1).view(N, G, C, G, C),
        torch.stack(dX, 2),
        torch.stack(dY, 2),
        (S * dS).sum(1),
    )
    first, *searches = dx.unbind(2)
    dk, *erases = dy.unbind(2)
    return [first, dk, dV, dlog, *searches, *erases]


class _Chunked(torch.autograd.Function):
    """Saves the inputs and one state per chunk; the backward computes the rest anew, a group at a time."""

    @staticmethod
    def forward(ctx: Any, S0: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        scale, side, bounds, C, *tokens = args
        q, k, v = tokens[:3]
        layout = layout_of(q.shape[0], q.shape[1], bounds, _power_of_two(q.shape[1], bounds, C), q.device)
        H, chunks = q.shape[2], [layout.split(x) for x in tokens]
        n = sum(layout.running)
        S = S0 if layout.order is None else S0[layout.order]
        o = q.new_empty(n, layout.C, H, (v if side == "key" else k).shape[-1])
        before = q.new_empty(n * H, *S0.shape[2:])
        for start, end, running in layout.groups(q):
            group = [heads_first(y[start:end]) for y in chunks]
            x = _prepare(group, group[0] if side == "key" else None, side == "value")
            S_n, S = _walk(x, S, running)
            before[start * H : end * H] = S_n
            out = _read(x, S_n, _writes(x, S_n)) if side == "key" else _read_value(x, S_n, group[0])
            torch.mul(tokens_first(out, H), scale, out=o[start:end])
        ctx.save_for_backward(*tokens, before)
        ctx.layout, ctx.scale, ctx.side = layout, scale, side
        return layout.join(o), layout.final(S, S0)

    @staticmethod
    @once
    def backward(ctx: Any, do: Tensor, dS: Tensor) -> tuple[Any, ...]:
        *tokens, before = ctx.saved_tensors
        layout: Layout = ctx.layout
        H, chunks = tokens[0].shape[2], [layout.split(x) for x in tokens]
        do_chunks = layout.split(do * ctx.scale)
        grads = [torch.empty_like(x) for x in chunks]
        dS = dS if layout.order is None else dS[layout.order]
        for start, end, running in reversed(layout.groups(tokens[0])):
            group = [heads_first(y[start:end]) for y in chunks]
            a, b = group[0], heads_first(do_chunks[start:end])
            if ctx.side == "value":
                a, b = b, a
            x, S = _prepare(group, a, True), before[start * H : end * H]
            dS_after, dS = _walk_back(x, b, dS, running)
            Y = _writes(x, S)
            found = _grads(x, b, S, Y, dS_after)
            if ctx.side == "value":
                found[0] = _read(x, S, Y)
            for into, y in zip(grads, found, strict=True):
                into[start:end] = tokens_first(y, H)
        dS = dS if layout.order is None else dS[layout.inverse]
        return dS, None, None, None, None, *(layout.join(y) for y in grads)


def _power_of_two(T: int, bounds: Bounds | None, most: int) -> int:
    """The longest chunk that halves evenly and is no longer than the longest sequence or `most`."""
    longest = max(lengths_of(1, T, bounds), default=0)
    return 1 << (max(1, min(longest, most)).bit_length() - 1)
