"""Attention over ragged sequences: every way in equals the definition on each sequence alone, with its gradients."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prism.ops.attention import (
    Bias,
    Past,
    causal_attention,
    pointwise_attention,
    pointwise_reference,
    softmax_reference,
    time_bucket,
    visible,
)
from prism.ops.common.ragged import similar

H, K, V = 2, 3, 4
BIAS = Bias(torch.randn(9, dtype=torch.float64), torch.randn(129, dtype=torch.float64))
FORMS = ["softmax", "pointwise"]


def draw(length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k = torch.randn(2, 1, length, H, K, dtype=torch.float64)
    v = torch.randn(1, length, H, V, dtype=torch.float64)
    return q, k, v, torch.randint(0, 10**6, (1, length, 2))


def fast(form: str, q, k, v, times, past: Past | None = None, cu_seqlens=None) -> tuple[Tensor, Past]:
    if form == "softmax":
        return causal_attention(q, k, v, past=past, cu_seqlens=cu_seqlens)
    return pointwise_attention(q, k, v, BIAS, 0.1, times=times, past=past, cu_seqlens=cu_seqlens)


def definition(form: str, q, k, v, times) -> Tensor:
    start, T = torch.zeros(1, dtype=torch.long), q.shape[1]
    mask = visible(start, T, T)
    if form == "softmax":
        return softmax_reference(q, k, v, mask)
    bias = BIAS.between(start, T, times[..., 1], times[..., 0])
    return pointwise_reference(q, k, v, bias, 0.1, mask)


@pytest.mark.parametrize("form", FORMS)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6), later=st.integers(0, 3))
def test_packed_sequences_with_a_past_equal_the_definition(form: str, lengths: list[int], later: int) -> None:
    lengths = [*lengths, 140]
    first = draw(sum(lengths))
    second = draw(later * len(lengths))
    for x in (*first[:3], *second[:3]):
        x.requires_grad_()
    limits = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    y, past = fast(form, *first, cu_seqlens=torch.tensor(limits))
    z, last = fast(form, *second, past=past, cu_seqlens=torch.arange(len(lengths) + 1) * later)
    assert last.lengths.tolist() == [n + later for n in lengths]
    wanted_y, wanted_z = [], []
    for n, (a, b) in enumerate(pairwise(limits)):
        both = [
            torch.cat([x[:, a:b], w[:, later * n : later * n + later]], 1) for x, w in zip(first, second, strict=True)
        ]
        o = definition(form, *both)
        wanted_y.append(o[:, : b - a])
        wanted_z.append(o[:, b - a :])
    ours, theirs = torch.cat([y, z], 1), torch.cat([*wanted_y, *wanted_z], 1)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)
    weights, leaves = torch.randn_like(ours), [*first[:3], *second[:3]]
    ours, theirs = (
        torch.autograd.grad((o * weights).sum(), leaves, allow_unused=True, materialize_grads=True)
        for o in (ours, theirs)
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_a_past_of_unequal_lengths_may_be_empty_for_some(form: str) -> None:
    first, second = draw(5), draw(6)
    _, past = fast(form, *first, cu_seqlens=torch.tensor([0, 0, 5, 5]))
    z, _ = fast(form, *second, past=past, cu_seqlens=torch.tensor([0, 2, 4, 6]))
    torch.testing.assert_close(z[:, :2], definition(form, *(x[:, :2] for x in second)))
    torch.testing.assert_close(z[:, 4:], definition(form, *(x[:, 4:] for x in second)))
    both = [torch.cat([x, w[:, 2:4]], 1) for x, w in zip(first, second, strict=True)]
    torch.testing.assert_close(z[:, 2:4], definition(form, *both)[:, 5:])


def test_buckets_of_time_grow_with_its_logarithm() -> None:
    seconds = torch.tensor([0, 1, -1, 2, 60, 86_400, -86_400, 31_536_000, 10**18])
    assert time_bucket(seconds, 128).tolist() == [0, 0, 0, 2, 13, 37, 37, 57, 128]
    assert time_bucket(seconds, 20).tolist() == [0, 0, 0, 2, 13, 20, 20, 20, 20]


@given(st.lists(st.integers(0, 5000), max_size=30))
def test_sequences_padded_together_are_alike(lengths: list[int]) -> None:
    bounds = tuple(sum(lengths[:n]) for n in range(len(lengths) + 1))
    groups = similar(bounds)
    assert sorted(n for group in groups for n in group) == [n for n, length in enumerate(lengths) if length]
    for group in groups:
        assert max(lengths[n] for n in group) <= 1.25 * min(lengths[n] for n in group) + 1
