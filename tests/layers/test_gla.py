"""Gated linear attention against its equations, one token and one head at a time."""

import math

import pytest
import torch
from support.plain import assert_matches, inputs, randomise, rms_norm, sigmoid, silu
from torch import Tensor

from prism.layers import mixer_config

H, K, V, D, RANK = 2, 3, 5, 12, 4


def build(**fields):
    config = mixer_config("gla", heads=H, head_key=K, head_value=V, gate_rank=RANK, **fields)
    return randomise(config.build(D))


def definition(mixer, x: Tensor) -> Tensor:
    widths = [H * K, H * K, H * V, RANK, H * V]
    q, k, v, low, gate = (x @ mixer.project.weight.T).split(widths, -1)
    alpha = sigmoid(low @ mixer.decay.weight.T + mixer.decay.bias) ** (1 / mixer.config.damping)
    S = [torch.zeros(V, K, dtype=torch.float64) for _ in range(H)]
    outputs = []
    for t in range(len(x)):
        heads = []
        for h in range(H):
            key, value = slice(h * K, h * K + K), slice(h * V, h * V + V)
            S[h] = S[h] @ torch.diag(alpha[t, key]) + torch.outer(v[t, value], k[t, key])
            read = S[h] @ q[t, key] / math.sqrt(K)
            heads.append(rms_norm(read, mixer.read.norm.weight, 1e-6) * silu(gate[t, value]))
        outputs.append(mixer.out.weight @ torch.cat(heads))
    return torch.stack(outputs)


def test_the_layer_equals_its_definition() -> None:
    assert_matches(build(), definition, inputs(70, D))


def test_a_fast_forgetting_layer_equals_its_definition() -> None:
    mixer = build(damping=1.0)
    with torch.no_grad():
        mixer.decay.bias -= 15  # decays around 3e-7
    assert_matches(mixer, definition, inputs(70, D))


def test_constant_gates_are_retention() -> None:
    mixer = build()
    with torch.no_grad():
        mixer.decay.weight.zero_()
    x = inputs(90, D)[0]
    q, k, v, _, gate = (x @ mixer.project.weight.T).split([H * K, H * K, H * V, RANK, H * V], -1)
    decay = sigmoid(mixer.decay.bias) ** (1 / 16)
    apart = torch.arange(90)[:, None] - torch.arange(90)
    heads = []
    for h in range(H):
        key, value = slice(h * K, h * K + K), slice(h * V, h * V + V)
        powers = decay[key] ** apart.clamp_min(0)[..., None]
        weights = torch.einsum("ic,jc,ijc->ij", q[:, key], k[:, key], powers).tril() / math.sqrt(K)
        read = [rms_norm(row, mixer.read.norm.weight, 1e-6) for row in weights @ v[:, value]]
        heads.append(torch.stack(read) * silu(gate[:, value]))
    expected = torch.cat(heads, -1) @ mixer.out.weight.T
    torch.testing.assert_close(mixer(x[None])[0][0], expected, rtol=1e-10, atol=1e-10)


def test_the_default_keys_are_half_as_wide_as_the_values() -> None:
    mixer = mixer_config("gla", heads=4).build(64)
    assert mixer.state_shapes() == ((4, 16, 8),)


def test_a_mixture_of_memories_takes_it_inside() -> None:
    mixer = mixer_config("mom", inner="gla", heads=2).build(16)
    y, state = mixer(torch.randn(2, 9, 16))
    again, _ = mixer(torch.randn(2, 3, 16), state)
    assert torch.isfinite(y).all()
    assert torch.isfinite(again).all()


@pytest.mark.parametrize("field", ["head_key", "head_value", "gate_rank", "damping"])
def test_sizes_below_one_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        mixer_config("gla", **{field: 0})
