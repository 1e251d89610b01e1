"""The recurrence in chunks of C tokens, exact, as batched matrix products; forward and backward by hand.

Inside a chunk with incoming state S, g = cumsum(log α), Γ_ij = e^{g_i − g_j} for i ≥ j (a difference of sums, never a
division by a decay), W_l = β^l δ^l, and K = [K_1; …; K_L] the stacked directions:

    A = E (K_1 Kᵀ) ∘ Γ, strictly lower        P = (Q Kᵀ) ∘ Γ                    one C×C block for each of the L steps
    (I + A_1) U = W_1 − Σ_{l≥2} A_l W_l − E e^g K_1 Sᵀ                           the net first write
    O = e^g Q Sᵀ + P Y            S' = e^{g_C} S + Yᵀ (e^{g_C − g} K)            with Y = [U; W_2; …; W_L]

With an erasure for each direction every row of K erases: K_1 becomes K, its rows in the order in which they are written
(all of a token's directions, then the next token's), and (I + A) Y = W − E e^g K Sᵀ is one system of L·C rows.

U = X_v − X_k Sᵀ makes S' = S F + D, with F and D known before any state: the loop over chunks is one product per step.
Chunks are taken a group at a time, so that what is computed on the way stays in cache.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from prism.ops.common.autograd import once
from prism.ops.common.decays import decay_matrix
from prism.ops.common.layout import Layout, layout_of
from prism.ops.delta.operands import Operands

CHUNK = 64


def forward(x: Operands, chunk_size: int = CHUNK) -> tuple[Tensor, Tensor]:
    """The outputs and the final states; differentiable in every tensor."""
    if x.erase.ndim == 4:
        chunk_size = max(1, chunk_size // x.k.shape[3])  # the system to solve keeps its size
    o, S = _Chunked.apply(x.q, x.k, x.v, x.beta, x.log_alpha, x.erase, x.S0, x.scale, x.bounds, chunk_size)  # type: ignore[misc]
    return o, S


class _Rows(NamedTuple):
    """The order of the L·C directions of a chunk: step by step or, where each erases, token by token."""

    C: int
    L: int
    each: bool

    @property
    def erased(self) -> int:
        """Rows that erase; they come first."""
        return self.L * self.C if self.each else self.C

    def stack(self, x: Tensor) -> Tensor:
        """[n, C, H, L, D] to [n, H, L·C, D]."""
        n, C, H, L, D = x.shape
        return (
            x.permute(0, 2, 1, 3, 4).reshape(n, H, C * L, D)
            if self.each
            else x.permute(0, 2, 3, 1, 4).reshape(n, H, L * C, D)
        )

    def unstack(self, x: Tensor) -> Tensor:
        """[n, H, L·C, D] back to [n, C, H, L, D]."""
        n, H, _, D = x.shape
        if self.each:
            return x.view(n, H, self.C, self.L, D).transpose(1, 2)
        return x.view(n, H, self.L, self.C, D).permute(0, 3, 1, 2, 4)

    def spread(self, x: Tensor, dim: int = -1) -> Tensor:
        """One entry per token to one per direction."""
        if self.each:
            return x.repeat_interleave(self.L, dim)
        return torch.cat([x] * self.L, dim)

    def gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """The sum over each token's directions."""
        if self.each:
            return x.unflatten(dim, (self.C, self.L)).sum(dim if dim < 0 else dim + 1)
        return x.unflatten(dim, (self.L, self.C)).sum(dim - 1 if dim < 0 else dim)

    def erasers(self, x: Tensor) -> Tensor:
        """One entry per token to one per direction that erases."""
        return self.spread(x) if self.each else x

    def gather_erasers(self, x: Tensor, dim: int = -1) -> Tensor:
        """The sum over each token's directions that erase."""
        return self.gather(x, dim) if self.each else x

    def clear_token(self, x: Tensor) -> None:
        """[n, H, C, L·C]: zeros where row and column are of one token."""
        if self.each:
            x.view(*x.shape[:3], self.C, self.L).diagonal(dim1=2, dim2=3).zero_()
        else:
            x.view(*x.shape[:3], self.L, self.C).diagonal(dim1=2, dim2=4).zero_()

    def clear_later(self, x: Tensor) -> None:
        """[n, H, erased, L·C]: zeros where the column's direction is not written before the row's."""
        if self.each:
            x.tril_(-1)
        else:
            self.clear_token(x)


class _Group(NamedTuple):
    """The part of a group of chunks that no state enters. n: chunks, H: heads; R: rows that erase, C or L·C."""

    Q: Tensor  # [n, H, C, K]
    K: Tensor  # [n, H, L·C, K]
    v: Tensor  # [n, H, L·C, V]
    W: Tensor  # [n, H, L·C, V]
    beta: Tensor  # [n, H, L·C]
    eps: Tensor  # [n, H, R]
    decay: Tensor  # [n, H, C]: e^g
    end: Tensor  # [n, H, C]: e^{g_C − g}
    gamma: Tensor  # [n, H, C, L·C]: Γ, once for each step
    KK: Tensor  # [n, H, R, L·C]: K_1 Kᵀ ∘ Γ, of directions written earlier
    P: Tensor  # [n, H, C, L·C]
    A: Tensor  # [n, H, R, L·C]
    X: Tensor  # [n, H, R, V+K]: X_v and X_k side by side
    F: Tensor  # [n, H, K, K]
    K_end: Tensor  # [n, H, L·C, K]: e^{g_C − g} K
    rows: _Rows


def _prepare(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_alpha: Tensor, eps: Tensor) -> _Group:
    C, L = k.shape[1], k.shape[3]
    rows = _Rows(C, L, eps.ndim == 4)
    R = rows.erased
    Q, K, v = q.transpose(1, 2).contiguous(), rows.stack(k), rows.stack(v)
    beta = rows.stack(beta.unsqueeze(-1)).squeeze(-1)
    eps = rows.stack(eps.unsqueeze(-1)).squeeze(-1) if rows.each else eps.transpose(1, 2).contiguous()
    W = beta.unsqueeze(-1) * v
    gamma, g = decay_matrix(log_alpha.transpose(1, 2).contiguous())
    decay, end = g.exp().to(q.dtype), (g[..., -1:] - g).exp().to(q.dtype)
    gamma = rows.spread(gamma)
    P = (Q @ K.mT).mul_(gamma)
    KK = (K[:, :, :R] @ K.mT).mul_(rows.spread(gamma, -2) if rows.each else gamma)
    rows.clear_later(KK)
    A = eps.unsqueeze(-1) * KK
    right = W[:, :, :R]
    if R < L * C:
        right = right - A[..., R:] @ W[:, :, R:]
    X = torch.cat([right, (eps * rows.erasers(decay)).unsqueeze(-1) * K[:, :, :R]], -1)
    X = torch.linalg.solve_triangular(A[..., :R], X, upper=False, unitriangular=True)
    K_end = rows.spread(end).unsqueeze(-1) * K
    F = -(X[..., v.shape[-1] :].mT @ K_end[:, :, :R])
    F.diagonal(dim1=-2, dim2=-1).add_(decay[..., -1:])
    return _Group(Q, K, v, W, beta, eps, decay, end, gamma, KK, P, A, X, F, K_end, rows)


def _walk(x: _Group, S: Tensor, running: list[int]) -> tuple[Tensor, Tensor]:
    """The loop over chunks, S' = S F + D: the state before each chunk, and the states of all sequences after."""
    H, V = x.Q.shape[1], x.v.shape[-1]
    Y = torch.cat([x.X[..., :V], x.W[:, :, x.rows.erased :]], 2)
    D = (Y.mT @ x.K_end).flatten(0, 1)
    F, before = x.F.flatten(0, 1), torch.empty_like(D)
    a, S = 0, S.flatten(0, 1)
    for n in running:
        b = a + n * H
        before[a:b] = S[: n * H]
        after = torch.baddbmm(D[a:b], S[: n * H], F[a:b])
        S = after if n * H == S.shape[0] else torch.cat([after, S[n * H :]])
        a = b
    return before.unflatten(0, (-1, H)), S.unflatten(0, (-1, H))


def _writes(x: _Group, S: Tensor) -> Tensor:
    """Y = [U; W_2; …; W_L], what each token adds to the state along each direction, given the chunk's S."""
    V = x.v.shape[-1]
    return torch.cat([x.X[..., :V] - x.X[..., V:] @ S.mT, x.W[:, :, x.rows.erased :]], 2)


class _Chunked(torch.autograd.Function):
    """Saves the inputs and one state per chunk; the backward computes the rest anew, a group at a time."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        *tokens, S0, scale, bounds, C = args
        q, _, v = tokens[:3]
        B, T, H, K = q.shape
        V = v.shape[-1]
        layout = layout_of(B, T, bounds, C, q.device)
        C = layout.C
        chunks = [layout.split(x) for x in tokens]
        S = S0 if layout.order is None else S0[layout.order]
        o = q.new_empty(sum(layout.running), C, H, V)
        before = q.new_empty(sum(layout.running), H, V, K)
        for start, end, running in layout.groups(q):
            x = _prepare(*(y[start:end] for y in chunks))
            before[start:end], S = _walk(x, S, running)
            S_n = before[start:end]
            out = x.P @ _writes(x, S_n) + x.decay.unsqueeze(-1) * (x.Q @ S_n.mT)
            torch.mul(out.transpose(1, 2), scale, out=o[start:end])
        ctx.save_for_backward(*tokens, before)
        ctx.layout, ctx.scale = layout, scale
        return layout.join(o), layout.final(S, S0)

    @staticmethod
    @once
    def backward(ctx: Any, do: Tensor, dS: Tensor) -> tuple[Any, ...]:
        *tokens, before = ctx.saved_tensors
        layout: Layout = ctx.layout
        chunks = [layout.split(x) for x in tokens]
        do_chunks = layout.split(do * ctx.scale)
        grads = [torch.empty_like(x) for x in chunks]
        dS = dS if layout.order is None else dS[layout.order]
        for start, end, running in reversed(layout.groups(do)):
            x = _prepare(*(y[start:end] for y in chunks))
            dO = do_chunks[start:end].transpose(1, 2).contiguous()
            dS_after, dS = _walk_back(x, dO, dS, running)
            _scatter_grads(x, dO, before[start:end], dS_after, [y[start:end] for y in grads])
        dS = dS if layout.order is None else dS[layout.inverse]
        return *(layout.join(y) for y in grads), dS, None, None, None


def _walk_back(x: _Group, dO: Tensor, dS: Tensor, running: list[int]) -> tuple[Tensor, Tensor]:
    """The loop over chunks backwards: the gradient of the state after each chunk, and of the states before all."""
    H, V = x.Q.shape[1], x.v.shape[-1]
    dU = x.P[..., : x.rows.erased].mT @ dO
    local = dO.mT @ (x.decay.unsqueeze(-1) * x.Q)  # what S gives to O directly
    local = torch.baddbmm(
        local.flatten(0, 1), dU.flatten(0, 1).mT, x.X[..., V:].flatten(0, 1), alpha=-1
    )  # and through U
    Ft, after = x.F.flatten(0, 1).mT, torch.empty_like(local)
    b, dS = local.shape[0], dS.flatten(0, 1)
    for n in reversed(running):
        a = b - n * H
        after[a:b] = dS[: n * H]
        before = torch.baddbmm(local[a:b], dS[: n * H], Ft[a:b])
        dS = before if n * H == dS.shape[0] else torch.cat([before, dS[n * H :]])
        b = a
    return after.unflatten(0, (-1, H)), dS.unflatten(0, (-1, H))


def _scatter_grads(x: _Group, dO: Tensor, S: Tensor, dS: Tensor, grads: list[Tensor]) -> None:
    """Gradients of one group, given those of its outputs and of the state after each chunk, put into `grads`."""
    dq, dk, dv, dbeta, dlog_alpha, deps = grads
    rows, R, decay = x.rows, x.rows.erased, x.decay
    K1, erased_decay = x.K[:, :, :R], rows.erasers(decay)

    Y = _writes(x, S)
    dY = x.P.mT @ dO + x.K_end @ dS.mT
    dR = torch.linalg.solve_triangular(x.A[..., :R].mT, dY[:, :, :R], upper=True, unitriangular=True)
    dP, dA = dO @ Y.mT, -(dR @ Y.mT)
    dW = torch.cat([dR, dY[:, :, R:] - x.A[..., R:].mT @ dR], 2)

    # the decays of Γ: entry ij of P and of A grows with g_i and shrinks with g_j; where i = j there is no decay, and
    # taking the diagonal out, not adding and subtracting it, keeps small gradients of strong decays exact
    flow = dP * x.P + rows.gather_erasers(dA * x.A, -2)
    rows.clear_token(flow)
    dg = flow.sum(-1) - rows.gather(flow.sum(-2))
    dQS = dO @ S
    dg += decay * (dQS * x.Q).sum(-1)
    dB = dR @ S  # minus the gradient of E e^g K_1
    erased = erased_decay * (dB * K1).sum(-1)
    deps_ = (dA * x.KK).sum(-1) - erased
    dg -= rows.gather_erasers(x.eps * erased)
    dK_end = Y @ dS
    kept = rows.gather((dK_end * x.K_end).sum(-1))
    kept[..., -1] = 0
    dg -= kept
    dg[..., -1] += kept.sum(-1) + decay[..., -1] * (S * dS).sum((-1, -2))

    dP *= x.gamma  # now the gradients of Q Kᵀ and of K_1 Kᵀ
    dA *= rows.spread(x.gamma, -2) if rows.each else x.gamma
    rows.clear_later(dA)
    dA *= x.eps.unsqueeze(-1)
    dQ = dP @ x.K + decay.unsqueeze(-1) * dQS
    dK = dP.mT @ x.Q + dA.mT @ K1 + rows.spread(x.end).unsqueeze(-1) * dK_end
    dK[:, :, :R] += dA @ x.K - (x.eps * erased_decay).unsqueeze(-1) * dB

    dq.copy_(dQ.transpose(1, 2))
    dk.copy_(rows.unstack(dK))
    dv.copy_(rows.unstack(x.beta.unsqueeze(-1) * dW))
    dbeta.copy_(rows.unstack((dW * x.v).sum(-1, keepdim=True)).squeeze(-1))
    dlog_alpha.copy_(dg.flip(-1).cumsum(-1).flip(-1).transpose(1, 2))
    deps.copy_(rows.unstack(deps_.unsqueeze(-1)).squeeze(-1) if rows.each else deps_.transpose(1, 2))
