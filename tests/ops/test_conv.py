"""The short convolution: whole sequences against the one-token definition."""

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from prism.ops.conv import short_conv, short_conv_step


def loop(x, weight, history):
    outputs = []
    for t in range(x.shape[1]):
        y, history = short_conv_step(x[:, t], weight, history=history)
        outputs.append(y)
    return (torch.stack(outputs, 1) if outputs else x), history


def test_the_last_weight_meets_the_current_token() -> None:
    x = torch.arange(1.0, 7.0).view(1, 6, 1)
    y, history = short_conv(x, torch.tensor([[100.0, 10.0, 1.0]]))
    assert y.flatten().tolist() == [1, 12, 123, 234, 345, 456]
    assert history.flatten().tolist() == [5, 6]


@given(T=st.integers(0, 12), W=st.integers(1, 6), given_history=st.booleans(), silu=st.booleans())
def test_a_sequence_equals_its_tokens_one_by_one(T: int, W: int, given_history: bool, silu: bool) -> None:
    x, weight = torch.randn(2, T, 3, dtype=torch.float64), torch.randn(3, W, dtype=torch.float64)
    history = torch.randn(2, W - 1, 3, dtype=torch.float64) if given_history else None
    got, last = short_conv(x, weight, history=history, silu=silu)
    want, want_last = loop(x, weight, history)
    torch.testing.assert_close(got, F.silu(want) if silu else want)
    torch.testing.assert_close(last, want_last if want_last is not None else x.new_zeros(2, W - 1, 3))


@given(lengths=st.lists(st.integers(0, 7), min_size=0, max_size=5), W=st.integers(1, 6), silu=st.booleans())
def test_packed_sequences_do_not_see_each_other(lengths: list[int], W: int, silu: bool) -> None:
    limits = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(1, int(limits[-1]), 3, dtype=torch.float64)
    weight = torch.randn(3, W, dtype=torch.float64, requires_grad=True)
    history = torch.randn(len(lengths), W - 1, 3, dtype=torch.float64)
    got, last = short_conv(x, weight, history=history, cu_seqlens=limits, silu=silu)
    assert last.shape == history.shape
    for n, (a, b) in enumerate(zip(limits.tolist(), limits.tolist()[1:], strict=False)):
        want, want_last = loop(x[:, a:b], weight, history[n : n + 1])
        torch.testing.assert_close(got[:, a:b], F.silu(want) if silu else want)
        torch.testing.assert_close(last[n : n + 1], want_last)
