"""The ideal solver: L steps of S ← S + β [φ'(S k) ⊙ (v − φ(S k))] kᵀ per token, from α S_{t−1}; read o = scale · S q.

All L steps of a token share its key, so that they write Δ kᵀ with Δ = Σ_l β^l δ^l, and need of S only y = S k: each
step moves y by β ‖k‖² δ. Inside a chunk with incoming state S, and Γ as in `decays.py`, all that is serial is

    y_t = e^{g_t} S k_t + Σ_{j<t} Γ_tj (k_j·k_t) Δ_j        Δ_t = f(y_t; v_t, β_t, ‖k_t‖²)

a triangular system that φ makes nonlinear; the rest is matrix products. Its backward is a linear triangular system.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from prism.config import at_least, one_of
from prism.ops.common.autograd import once
from prism.ops.common.checks import describe
from prism.ops.common.decays import decay_matrix
from prism.ops.common.packing import Limits
from prism.ops.common.precision import own_precision
from prism.ops.delta.operands import Operands, operands
from prism.ops.fastweight.walk import MiniBatches, Parts, Turn

Response = Literal["gelu", "tanh", "identity"]
CHUNK = 32


def nonlinear_delta(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H *L"],
    log_alpha: Float[Tensor, "B T H"] | None = None,
    *,
    steps: int = 1,
    nonlinearity: Response = "gelu",
    scale: float | None = None,
    initial_state: Float[Tensor, "N H V K"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Limits | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H V K"] | None]:
    """L gradient steps per token on ½‖φ(S k) − v‖² (Eq. ideal_solver, repeated): what PRISM amortises.

    Args:
        q: Queries.
        k: Keys.
        v: What φ(S k) should answer.
        beta: The size of the steps: one for all, or with a last axis of L.
        log_alpha: Logarithm of the decay before the first step, at most 0; None for no decay.
        steps: L, gradient steps per token.
        nonlinearity: φ; with `identity` and one step this is Gated DeltaNet.
        scale: Factor on the output; None for 1.
        initial_state: The state before the first token; None for zeros.
        output_final_state: Whether to return the state after the last token.
        cu_seqlens: Limits 0, …, T of sequences packed into one row (B = 1), each with a state of its own.

    Returns:
        The outputs in q's dtype, and the final state (float32, or float64 for float64 inputs) or None.
    """
    at_least("steps", steps, 1)
    one_of("nonlinearity", nonlinearity, Response)
    if isinstance(k, Tensor) and k.ndim != 4:
        raise ValueError(f"k must have shape [B, T, H, K], one key per token, got {describe(k)}")
    own = isinstance(beta, Tensor) and beta.ndim == 4 and beta.shape[-1] == steps  # each step has its size
    with own_precision(q):
        given = (q, k, v, beta[..., 0] if own else beta, log_alpha)
        x = operands(*given, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens)
        sizes = beta.to(x.q.dtype) if own else x.beta.expand(*x.beta.shape[:3], steps)
        o, S = _chunks(x, sizes, nonlinearity) if q.shape[1] else (x.v[:, :, :, 0], x.S0)
    return o.to(q.dtype), S if output_final_state else None


def _correction(y: Tensor, v: Tensor, nonlinearity: Response) -> Tensor:
    """δ = φ'(y) ⊙ (v − φ(y)): the product of φ's derivative with the residual, as its backward gives it."""
    delta: Tensor
    if nonlinearity == "gelu":
        delta = torch.ops.aten.gelu_backward(v - F.gelu(y), y)
    elif nonlinearity == "tanh":
        response = y.tanh()
        delta = torch.ops.aten.tanh_backward(v - response, response)
    else:
        delta = v - y
    return delta


def _chunks(x: Operands, beta: Tensor, nonlinearity: Response) -> tuple[Tensor, Tensor]:
    """The loop over chunks, after everything that no state enters."""
    start = torch.zeros(x.S0.shape[0], dtype=torch.long, device=x.q.device)
    chunks = MiniBatches(x.q, start, x.bounds, CHUNK)
    Q, K, v = (chunks.split(y) for y in (x.q, x.k[:, :, :, 0], x.v[:, :, :, 0]))
    b, log_alpha = chunks.split(beta), chunks.split(x.log_alpha)
    gamma, g = decay_matrix(log_alpha)
    decay, end = g.exp().to(Q.dtype).unsqueeze(-1), gamma[:, -1].unsqueeze(-1)
    A = ((K @ K.mT) * gamma).tril(-1)
    KQ = torch.cat([decay * K, decay * Q], 1)
    kappa = K.square().sum(-1)

    def step(state: Parts, inputs: Parts, turn: Turn) -> tuple[Tensor, Parts]:
        KQ, A, P, K_end, last, v, b, kappa = inputs
        (S,) = state
        base, read = (KQ @ S.mT).chunk(2, 1)
        delta = _Solve.apply(A, base, v, b, kappa, nonlinearity)  # type: ignore[no-untyped-call]
        return torch.baddbmm(read, P, delta), (torch.baddbmm(last * S, delta.mT, K_end),)

    inputs = (KQ, A, (Q @ K.mT) * gamma, end * K, decay[:, -1:], v, b, kappa)
    o, (S,) = chunks.walk(step, (x.S0,), inputs)
    return x.scale * chunks.join(o), S


def _solve_token(y: Tensor, v: Tensor, b: Tensor, kappa: Tensor, nonlinearity: Response) -> Tensor:
    """Δ = f(y; v, β, ‖k‖²): all L steps of each token, given what its key reads before them."""
    total = None
    for beta in b.unsqueeze(-1).unbind(-2):
        write = beta * _correction(y, v, nonlinearity)
        y = y + kappa.unsqueeze(-1) * write
        total = write if total is None else total + write
    assert total is not None
    return total


class _Solve(torch.autograd.Function):
    """Δ of a chunk, token after token. Elementwise in V, so that its Jacobian is one vector per token."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, base: Tensor, v: Tensor, b: Tensor, kappa: Tensor, phi: Response) -> Tensor:
        delta, Y = torch.empty_like(base), torch.empty_like(base)
        for t in range(base.shape[1]):
            now = slice(t, t + 1)
            y = torch.baddbmm(base[:, now], A[:, now, :t], delta[:, :t]) if t else base[:, now]
            Y[:, now] = y
            delta[:, now] = _solve_token(y, v[:, now], b[:, now], kappa[:, now], phi)
        ctx.save_for_backward(A, Y, v, b, kappa, delta)
        ctx.phi = phi
        return delta

    @staticmethod
    @once
    def backward(ctx: Any, d_delta: Tensor) -> tuple[Tensor | None, ...]:
        A, Y, v, b, kappa, delta = ctx.saved_tensors
        with torch.enable_grad():
            Y, v, b, kappa = leaves = [x.detach().requires_grad_() for x in (Y, v, b, kappa)]
            again = _solve_token(Y, v, b, kappa, ctx.phi)
        (J,) = torch.autograd.grad(again, Y, torch.ones_like(delta), retain_graph=True)
        dY, total, At = torch.empty_like(delta), d_delta.clone(), A.mT.contiguous()
        for t in reversed(range(Y.shape[1])):  # dΔ_t gathers what later tokens read of it
            now, later = slice(t, t + 1), slice(t + 1, None)
            if t + 1 < Y.shape[1]:
                total[:, now].baddbmm_(At[:, now, later], dY[:, later])
            torch.mul(J[:, now], total[:, now], out=dY[:, now])
        # after a single step nothing reads y again, and ‖k‖² goes unused
        _, dv, db, dkappa = torch.autograd.grad(again, leaves, total, materialize_grads=True)
        return (dY @ delta.mT).tril(-1), dY, dv, db, dkappa, None
