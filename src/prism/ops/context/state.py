"""The recurrence over segments: a segment is affine in its incoming state, S_out = S_in M + h.

Both come from one run of the recurrence on values with K more rows of zeros, from the state [0; I] in place of 0: it
ends at [h; M], and its reads [h_t q_t; M_t q_t] make o_t = h_t q_t + S_in (M_t q_t). Processes exchange (M, h) once,
whatever the length, and fold those before them; the backward exchanges the gradients of S_in and folds those after:

    S^{r+1} = S^r M_r + h_r        G^r = dS^r + G^{r+1} M_rᵀ,   dh_r = G^{r+1},   dM_r = S^rᵀ G^{r+1}
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.autograd import once
from prism.ops.common.checks import compute_dtype
from prism.ops.common.precision import own_precision
from prism.ops.context.segment import Segment
from prism.ops.delta.rule import delta_rule


def delta_rule_across(
    segment: Segment, q: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H *L V"], **others: Any
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H V K"]]:
    """`delta_rule` on this process's tokens, from zeros where a sequence begins; and the states after them, here.

    Its other operands, from k to scale, are `delta_rule`'s.
    All processes of the segment's group call it together, and again in the backward pass.
    """
    K, V, H = q.shape[-1], v.shape[-1], q.shape[2]
    packing = segment.packing
    N = q.shape[0] if packing is None else len(packing)
    dtype = compute_dtype(q.dtype)
    start = torch.cat(
        [q.new_zeros(N, H, V, K, dtype=dtype), torch.eye(K, dtype=dtype, device=q.device).expand(N, H, K, K)], 2
    )
    o, end = delta_rule(
        q,
        v=torch.cat([v, v.new_zeros(*v.shape[:-1], K)], -1),
        initial_state=start,
        output_final_state=True,
        cu_seqlens=packing,
        **others,
    )
    assert end is not None
    with own_precision(q):
        h, M = end.split([V, K], 2)
        last = slice(None) if packing is None else slice(N - 1, N)
        S = _Fold.apply(M[last].contiguous(), h[last].contiguous(), segment)
        first = q.shape[1] if packing is None else packing.bounds[1]
        read, local = o[..., V:], o[..., :V]
        carried = torch.einsum("bhvk,bthk->bthv", S, read[:, :first].to(dtype))
        o = torch.cat([local[:, :first] + carried.to(o.dtype), local[:, first:]], 1)
        many = slice(None) if packing is None else slice(0, 1)
        h = torch.cat([h[many] + S @ M[many], h[len(S) :]])
    return o, h


class _Fold(torch.autograd.Function):
    """(M, h) of every process's last piece → the state before this process's first; zeros where it begins anew."""

    @staticmethod
    def forward(ctx: Any, M: Tensor, h: Tensor, segment: Segment) -> Tensor:
        every = segment.gather(torch.cat([h, M], 2))
        V = h.shape[2]
        S = torch.zeros_like(h)
        for rank in range(segment.rank):
            h_r, M_r = every[rank].split([V, M.shape[2]], 2)
            S = S @ M_r + h_r if segment.passes[rank] else h_r
        if not segment.continues[segment.rank]:
            S = torch.zeros_like(h)
        ctx.segment = segment
        ctx.save_for_backward(S, every[:, :, :, V:])
        return S

    @staticmethod
    @once
    def backward(ctx: Any, dS: Tensor) -> tuple[Tensor, Tensor, None]:
        segment: Segment = ctx.segment
        S, M = ctx.saved_tensors
        every = segment.gather(dS)
        G = torch.zeros_like(dS)
        for rank in reversed(range(segment.rank + 1, segment.world)):
            if not segment.continues[rank]:
                G = torch.zeros_like(dS)
            else:
                G = every[rank] + G @ M[rank].mT if segment.passes[rank] else every[rank]
        dM = S.mT @ G if segment.passes[segment.rank] else torch.zeros_like(M[0])
        return dM, G, None
