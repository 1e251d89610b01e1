"""Causal attention with a cache: o_i = Σ_{j≤i} w_ij v_j, by softmax w ∝ e^{q·k/√d} or pointwise w = SiLU(q·k + b)/N."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prism.ops.common.packing import Bounds, Limits, lengths_of, read_bounds
from prism.ops.common.ragged import append, pad, rows_of, similar, unpad

Tensors = tuple[Tensor, ...]
# (queries [n, R, …], keys [n, S, …], tokens of each sequence before its first query; None: query i is key i)
Core = Callable[[Tensors, Tensors, Tensor | None], Tensor]
# A key that came without a time.
NO_TIME = torch.iinfo(torch.int64).min
# Queries taken together in pointwise attention: less is computed above the diagonal, and the rest stays in cache.
BLOCK = 128


class Past(NamedTuple):
    """What attention remembers: one padded tensor [N, S, …] for each thing it keeps of a token, and the lengths."""

    kept: Tensors
    lengths: Int[Tensor, " N"]


def visible(first: Int[Tensor, " n"], R: int, S: int) -> Bool[Tensor, "n R S"]:
    """Which of S keys each of R queries may see, the first of them at place `first`: those up to its own place."""
    place = first[:, None] + torch.arange(R, device=first.device)
    return torch.arange(S, device=first.device) <= place[..., None]


def attend(
    core: Core, queries: Tensors, keys: Tensors, past: Past | None, cu_seqlens: Limits | None
) -> tuple[Float[Tensor, "B T H V"], Past]:
    """Runs `core` on every sequence with its own past, without mixing; all tensors [B, T, …], dense or packed."""
    B, T = queries[0].shape[:2]
    bounds, device = read_bounds(cu_seqlens, B, T), queries[0].device
    counts = lengths_of(B, T, bounds)
    padded = tuple(pad(x, bounds) for x in keys)
    if past is None or not past.lengths.any():
        lengths = torch.tensor(counts, dtype=torch.long, device=device)
        o = core(queries, keys, None) if bounds is None else _packed(core, queries, keys, bounds)
        return o, Past(padded, lengths)
    before = past.lengths.tolist()
    kept = tuple(append(old, before, new, counts) for old, new in zip(past.kept, padded, strict=True))
    o = core(tuple(pad(x, bounds) for x in queries), kept, past.lengths)
    return unpad(o, bounds), Past(kept, past.lengths + torch.tensor(counts, device=device))


def _packed(core: Core, queries: Tensors, keys: Tensors, bounds: Bounds) -> Tensor:
    """Groups of packed sequences that have no past: padding follows every real token, so causality hides it."""
    outputs, order = [keys[1][0, :0]], []
    for which in similar(bounds):
        index, real = rows_of(bounds, which, queries[0].device)
        o = core(tuple(x[0][index] for x in queries), tuple(x[0][index] for x in keys), None)
        outputs.append(o[real])
        order.append(index[real])
    o = torch.cat(outputs)
    return o[torch.cat(order).argsort()][None] if order else o[None]


def softmax_reference(
    q: Float[Tensor, "n R H K"],
    k: Float[Tensor, "n S H K"],
    v: Float[Tensor, "n S H V"],
    mask: Bool[Tensor, "n R S"],
) -> Float[Tensor, "n R H V"]:
    """The definition of softmax attention."""
    scores = torch.einsum("nrhk,nshk->nhrs", q, k) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~mask.unsqueeze(1), -torch.inf).softmax(-1)
    return torch.einsum("nhrs,nshv->nrhv", weights, v)


def causal_attention(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    past: Past | None = None,
    cu_seqlens: Limits | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "B T H V"], Past]:
    """Softmax attention by the fused kernel of PyTorch; `past` is what an earlier call returned."""

    def core(queries: Tensors, keys: Tensors, before: Tensor | None) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (*queries, *keys))
        mask = None if before is None else visible(before, q.shape[2], k.shape[2]).unsqueeze(1)
        o = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, is_causal=mask is None)
        return o.transpose(1, 2)

    return attend(core, (q,), (k, v), past, cu_seqlens)


def time_bucket(seconds: Int[Tensor, "*pairs"], buckets: int) -> Int[Tensor, "*pairs"]:
    """⌊ln max(|x|, 1) / 0.301⌋, from 0 to `buckets`."""
    return seconds.float().abs_().clamp_(min=1).log_().div_(0.301).long().clamp_(max=buckets)


class Bias(NamedTuple):
    """What is added to the scores of pointwise attention, the same for every head."""

    place: Float[Tensor, " P"]
    """By how many tokens lie between key and query; the last entry is for all that are farther."""
    time: Float[Tensor, " buckets"]
    """By the bucket of the time between the key and what the query asks about."""

    def between(
        self, first: Int[Tensor, " n"], R: int, asked: Int[Tensor, "N R"] | None, when: Int[Tensor, "N S"]
    ) -> Float[Tensor, "_ R S"]:
        """For R queries, the first of them at place `first` (one for all sequences, or one each), and S keys."""
        place = first[:, None] + torch.arange(R, device=when.device)
        distance = place[..., None] - torch.arange(when.shape[1], device=when.device)
        bias = self.place[distance.clamp(0, len(self.place) - 1)]
        if asked is None:
            return bias
        bucket = time_bucket(asked[..., None] - when[:, None], len(self.time) - 1)
        bucket = bucket.masked_fill_((when == NO_TIME)[:, None], len(self.time))
        return bias + F.pad(self.time, (0, 1))[bucket]  # a key without a time gets no bias for it


def pointwise_reference(
    q: Float[Tensor, "n R H K"],
    k: Float[Tensor, "n S H K"],
    v: Float[Tensor, "n S H V"],
    bias: Float[Tensor, "_ R S"],
    scale: float,
    mask: Bool[Tensor, "_ R S"],
) -> Float[Tensor, "n R H V"]:
    """The definition of pointwise attention: no softmax, so that the strength of an interest is kept."""
    scores = torch.einsum("nrhk,nshk->nhrs", q, k) + bias.unsqueeze(1)
    weights = scale * F.silu(scores).masked_fill(~mask.unsqueeze(1), 0)
    return torch.einsum("nhrs,nshv->nrhv", weights, v)


def pointwise_attention(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    bias: Bias,
    scale: float,
    *,
    times: Int[Tensor, "B T 2"] | None = None,
    past: Past | None = None,
    cu_seqlens: Limits | None = None,
) -> tuple[Float[Tensor, "B T H V"], Past]:
    """Pointwise attention, a block of queries at a time; `times`: when a token was, and when its answer is for."""

    def core(queries: Tensors, keys: Tensors, before: Tensor | None) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (queries[0], *keys[:2]))
        asked, when = queries[1] if times is not None else None, keys[2]
        start = torch.zeros(1, dtype=torch.long, device=q.device) if before is None else before
        outputs = [v[:, :, :0]]
        for a in range(0, q.shape[2], BLOCK):
            b = min(a + BLOCK, q.shape[2])
            S = b if before is None else k.shape[2]  # later keys are hidden from the whole block
            added = bias.between(start + a, b - a, None if asked is None else asked[:, a:b], when[:, :S])
            # hidden pairs: SiLU and its derivative are exactly 0 that far down, and the heads share one mask
            added = added.masked_fill(~visible(start + a, b - a, S), torch.finfo(q.dtype).min / 2)
            scores = (q[:, :, a:b] @ k[:, :, :S].mT).add_(added.unsqueeze(1))
            outputs.append(F.silu(scores) @ v[:, :, :S])
        return scale * torch.cat(outputs, 2).transpose(1, 2)

    when = torch.full(q.shape[:2], NO_TIME, device=q.device) if times is None else times[..., 0].long()
    asked = () if times is None else (times[..., 1].long(),)
    return attend(core, (q, *asked), (k, v, when), past, cu_seqlens)
