"""One token of every sequence: the state is read once and written once, in place where asked for; nothing is saved."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from prism.ops.delta.operands import Operands
from prism.ops.triton.compiling import kernel
from prism.ops.triton.delta.places import matrix, own_work, put_matrix
from prism.ops.triton.device import check_device

BLOCK = 16  # values of a program


@kernel
def one_token(
    q, k, v, beta, log_alpha, erase, S0, o, S_end, scale,
    H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Decay, erase, write, read, for a block of values of one head of one sequence."""
    n, h, first = own_work(V, BV)
    at = n.to(tl.int64) * H + h
    own = (at * V + first) * K
    i, j = first + tl.arange(0, BV), tl.arange(0, BK)
    S = matrix(S0 + own, V - first, BV, K, BK).to(tl.float32) * tl.exp(tl.load(log_alpha + at).to(tl.float32))
    if R == 1:
        k1 = tl.load(k + at * L * K + j, mask=j < K, other=0.0).to(tl.float32)
        S -= tl.load(erase + at).to(tl.float32) * tl.sum(S * k1[None, :], 1)[:, None] * k1[None, :]
    for l in range(0, L):
        kl = tl.load(k + (at * L + l) * K + j, mask=j < K, other=0.0).to(tl.float32)
        w = tl.load(beta + at * L + l).to(tl.float32)
        w *= tl.load(v + (at * L + l) * V + i, mask=i < V, other=0.0).to(tl.float32)
        if R > 1:
            w -= tl.load(erase + at * L + l).to(tl.float32) * tl.sum(S * kl[None, :], 1)
        S += w[:, None] * kl[None, :]
    read = tl.load(q + at * K + j, mask=j < K, other=0.0).to(tl.float32)
    tl.store(o + at * V + i, (scale * tl.sum(S * read[None, :], 1)).to(o.dtype.element_ty), mask=i < V)
    put_matrix(S_end + own, V - first, BV, K, BK, S)


def step(x: Operands, *, in_place: bool = False) -> tuple[Tensor, Tensor]:
    """The output [N, H, V] and the next state, which overwrites the one given where asked to; without gradients."""
    check_device(x.q)
    q, k, v, beta, log_alpha, erase = (y[:, 0].contiguous() for y in x[:6])
    N, H, L, K = k.shape
    V, S0 = v.shape[-1], x.S0.contiguous()
    o, S = q.new_empty(N, H, V), S0 if in_place else torch.empty_like(S0)
    if S.numel():
        BK, BV = triton.next_power_of_2(K), min(BLOCK, triton.next_power_of_2(V))
        sizes = {"H": H, "L": L, "R": L if erase.ndim == 3 else 1, "K": K, "V": V, "BK": BK, "BV": BV}
        one_token[(N * triton.cdiv(V, BV), H)](q, k, v, beta, log_alpha, erase, S0, o, S, x.scale, **sizes, num_warps=4)
    return (o if S.numel() else o.zero_()), S
