"""ATLAS' memory: Z_t = θ_t Z_{t−1} − Σ_{t−c<i≤t} γ_i ∇‖M_{t−1} φ(k_i) − v_i‖², M_t = α_t M_{t−1} + NS₅(Z_t).

The read is o_t = M_t φ(q_t); without the Newton–Schulz iteration NS₅ it is OmegaNet. Every token takes the gradients
of a whole window at the newest weights, and NS₅ needs the matrix itself: there is no dual form, the loop goes token by
token. NS₅ undoes any scale of the gradients, so that a step has size 1 whatever γ: `eta` scales it again. (With steps
of size 1 the recurrence is chaotic: float32 and float64 part ways within tens of tokens.)
"""

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.checks import compute_dtype
from prism.ops.common.packing import Limits, read_bounds
from prism.ops.common.precision import own_precision
from prism.ops.fastweight.walk import MiniBatches, Parts, Turn

# X ← a X + (b A + c A²) X with A = X Xᵀ: drives all singular values of X towards 1, roughly and fast.
SCHULZ = (3.4445, -4.775, 2.0315)


def atlas(
    q: Float[Tensor, "B T H F"],
    k: Float[Tensor, "B T H F"],
    v: Float[Tensor, "B T H V"],
    gamma: Float[Tensor, "B T H"],
    theta: Float[Tensor, "B T H"],
    alpha: Float[Tensor, "B T H"],
    state: tuple[Tensor, ...],
    *,
    iterations: int = 5,
    eta: Float[Tensor, "B T H"] | None = None,
    cu_seqlens: Limits | None = None,
) -> tuple[Float[Tensor, "B T H V"], tuple[Tensor, ...]]:
    """Whole sequences; differentiable in every tensor, through the inner updates.

    Args:
        q: Features of the queries.
        k: Features of the keys.
        v: Values.
        gamma: How much each token counts in the windows that hold it.
        theta: Momentum.
        alpha: What the memory keeps.
        state: Mᵀ and Zᵀ [N, H, F, V], and the last c−1 tokens, each (φ(k), v, γ) in one row: c is the window.
        iterations: Of Newton–Schulz; 0 turns it off.
        eta: The size of the step that M takes along NS₅(Z); None for 1.
        cu_seqlens: Limits 0, …, T of sequences packed into one row (B = 1).

    Returns:
        The outputs in q's dtype, and the state after them.
    """
    with own_precision(q):
        dtype, out = compute_dtype(q.dtype), q.dtype
        if q.shape[1] == 0:
            return v, state
        q, k, v, gamma, theta, alpha = (x.to(dtype) for x in (q, k, v, gamma, theta, alpha))
        M, Z, past = (x.to(dtype) for x in state)
        place = torch.zeros(M.shape[0], dtype=torch.long, device=q.device)
        tokens = MiniBatches(q, place, read_bounds(cu_seqlens, *q.shape[:2]), 1)
        newest = torch.cat([k, v, gamma.unsqueeze(-1)], -1)
        gates = [theta, alpha] if eta is None else [theta, alpha, eta.to(dtype)]
        inputs = [tokens.split(x) for x in (q, newest)] + [tokens.split(x).unsqueeze(-1) for x in gates]
        step = _Step(k.shape[-1], v.shape[-1], iterations)
        o, (M, Z, past) = tokens.walk(step, (M, Z, past), tuple(inputs))
        return tokens.join(o).to(out), (M, Z, past)


class _Step:
    """One token, for every running sequence and head."""

    def __init__(self, F: int, V: int, iterations: int):
        self.sizes, self.iterations = [F, V, 1], iterations

    def __call__(self, state: Parts, inputs: Parts, turn: Turn) -> tuple[Tensor, Parts]:
        (M, Z, past), (q, newest, theta, alpha, *eta) = state, inputs
        window = torch.cat([past, newest], 1)
        k, v, gamma = window.split(self.sizes, -1)
        error = torch.baddbmm(v, k, M, alpha=-1)
        Z = torch.baddbmm(theta * Z, k.mT, 2 * gamma * error)
        step = newton_schulz(Z, self.iterations) if self.iterations else Z
        M = torch.addcmul(eta[0] * step if eta else step, alpha, M)
        return q @ M, (M, Z, window[:, 1:])


def newton_schulz(Z: Float[Tensor, "n F V"], iterations: int = 5) -> Float[Tensor, "n F V"]:
    """Z with its singular values brought near 1; a zero matrix stays zero."""
    a, b, c = SCHULZ
    # the polynomial is odd, so that it may be taken on the side where XᵀX is smaller
    X = Z.mT if Z.shape[-1] > Z.shape[-2] else Z
    X = X / (torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        A = X.mT @ X
        X = torch.baddbmm(X, X, torch.baddbmm(A, A, A, beta=b, alpha=c), beta=a)
    return X.mT if Z.shape[-1] > Z.shape[-2] else X
