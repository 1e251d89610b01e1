"""HSTU against its equations, one token and one head at a time, with and without times."""

import math
from itertools import pairwise

import pytest
import torch
from support.plain import assert_matches, inputs, layer_norm, randomise, silu
from torch import Tensor

from prism.layers import mixer_config

H, K, V, D, T, N = 2, 3, 5, 12, 40, 16


def build(**fields):
    return randomise(mixer_config("hstu", heads=H, head_key=K, head_value=V, max_length=N, **fields).build(D))


def clock(length: int, batch: int = 1) -> Tensor:
    """Gaps of a second to about a year, sometimes none: [batch, length, 2]."""
    generator = torch.Generator().manual_seed(7)
    gaps = torch.exp(17 * torch.rand(batch, length + 1, generator=generator, dtype=torch.float64)).long()
    return (gaps - 1).cumsum(1).unfold(1, 2, 1)


def bucket(seconds: int) -> int:
    return min(max(math.floor(math.log(max(abs(seconds), 1)) / 0.301), 0), 128)


def definition(mixer, x: Tensor, times: Tensor | None = None, untimed: int = 0) -> Tensor:
    """`untimed`: how many of the first events came without a time."""
    rows = torch.stack([silu(mixer.project.weight @ layer_norm(x_t, 1e-6)) for x_t in x])
    U, values, Q, keys = rows.split([H * V, H * V, H * K, H * K], -1)
    outputs = []
    for i in range(len(x)):
        heads = []
        for h in range(H):
            read = torch.zeros(V, dtype=torch.float64)
            for j in range(i + 1):
                score = Q[i, h * K : h * K + K] @ keys[j, h * K : h * K + K]
                score = score + mixer.place_bias[min(i - j, N - 1)]
                if times is not None and j >= untimed:
                    score = score + mixer.time_bias[bucket(int(times[i, 1] - times[j, 0]))]
                read = read + silu(score) / N * values[j, h * V : h * V + V]
            heads.append(read)
        added = layer_norm(torch.cat(heads), 1e-6) * U[i]
        outputs.append(x[i] + mixer.merge.weight @ added + mixer.merge.bias)
    return torch.stack(outputs)


def test_without_times_the_layer_is_its_equations() -> None:
    assert_matches(build(), definition, inputs(T, D))


def test_with_times_the_layer_is_its_equations() -> None:
    mixer, x, times = build(), inputs(T, D), clock(T)
    ours, theirs = mixer(x, times=times)[0][0], definition(mixer, x[0], times[0])
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    parameters = list(mixer.parameters())
    weights = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad((ours * weights).sum(), parameters),
        torch.autograd.grad((theirs * weights).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_a_time_bias_of_zero_is_no_time_bias() -> None:
    mixer, x, times = build(), inputs(T, D), clock(T)
    assert (mixer(x)[0] - mixer(x, times=times)[0]).abs().max() > 1e-3
    torch.nn.init.zeros_(mixer.time_bias)
    torch.testing.assert_close(mixer(x)[0], mixer(x, times=times)[0])


def test_long_sequences_are_taken_in_blocks_without_a_trace() -> None:
    mixer, x, times = build(), inputs(300, D), clock(300)
    whole, _ = mixer(x, times=times)
    state, pieces = None, []
    for a, b in pairwise([0, 1, 1, 129, 130, 300]):
        y, state = mixer(x[:, a:b], state, times=times[:, a:b])
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-10, atol=1e-10)


def test_steps_and_packing_keep_the_times_of_each_sequence() -> None:
    mixer, limits = build(), [0, 7, 7, 16, 40]
    x, times = inputs(T, D), clock(T)
    packed, _ = mixer(x, cu_seqlens=torch.tensor(limits), times=times)
    for a, b in pairwise(limits):
        state, steps = None, [packed[:, :0]]
        for t in range(a, b):
            y, state = mixer.step(x[:, t], state, times=times[:, t])
            steps.append(y[:, None])
        torch.testing.assert_close(torch.cat(steps, 1), packed[:, a:b], rtol=1e-10, atol=1e-10)


def test_events_without_a_time_have_no_time_bias() -> None:
    mixer, x, times = build(), inputs(T, D), clock(T)
    _, state = mixer(x[:, :20])
    ours, _ = mixer(x[:, 20:], state, times=times[:, 20:])
    theirs = definition(mixer, x[0], times[0], untimed=20)
    torch.testing.assert_close(ours[0], theirs[20:], rtol=1e-10, atol=1e-10)


def test_dropout_acts_in_training_only() -> None:
    mixer, x = build(dropout=0.5), inputs(T, D)
    assert not torch.equal(mixer(x)[0], mixer(x)[0])
    mixer.eval()
    assert torch.equal(mixer(x)[0], mixer(x)[0])


def test_times_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(Exception, match="times"):
        build()(inputs(T, D), times=clock(T + 1))
