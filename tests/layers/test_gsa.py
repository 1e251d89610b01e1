"""Gated slot attention: its two passes against the definition, which keeps the slots and attends to them."""

import pytest
import torch
from support.plain import assert_matches, inputs, randomise, rms_norm, sigmoid, silu
from torch import Tensor

from prism.layers import mixer_config

H, K, V, M, D = 2, 3, 5, 4, 12


def build(**fields):
    return randomise(mixer_config("gsa", heads=H, head_key=K, head_value=V, slots=M, **fields).build(D))


def definition(mixer, x: Tensor) -> Tensor:
    q, k, v, gate = (x @ mixer.project.weight.T).split([H * K, H * K, H * V, H * M], -1)
    q, k, v = silu(q), silu(k), silu(v)
    f = sigmoid(gate) ** (1 / mixer.config.damping)
    slot_keys = [torch.zeros(M, K, dtype=torch.float64) for _ in range(H)]
    slot_values = [torch.zeros(M, V, dtype=torch.float64) for _ in range(H)]
    outputs = []
    for t in range(len(x)):
        heads = []
        for h in range(H):
            key, value = slice(h * K, h * K + K), slice(h * V, h * V + V)
            f_t = f[t, h * M : h * M + M]
            slot_keys[h] = torch.diag(f_t) @ slot_keys[h] + torch.outer(1 - f_t, k[t, key])
            slot_values[h] = torch.diag(f_t) @ slot_values[h] + torch.outer(1 - f_t, v[t, value])
            weights = torch.exp(slot_keys[h] @ q[t, key])
            heads.append(slot_values[h].T @ (weights / weights.sum()))
        outputs.append(mixer.out.weight @ rms_norm(silu(torch.cat(heads)), mixer.norm.weight, 1e-5))
    return torch.stack(outputs)


def test_two_passes_equal_the_definition() -> None:
    assert_matches(build(), definition, inputs(70, D))


def test_two_passes_equal_the_definition_where_slots_forget_at_once() -> None:
    mixer = build(damping=1.0)
    with torch.no_grad():
        mixer.project.weight[-H * M :] *= 20
    assert_matches(mixer, definition, inputs(70, D))


def test_there_are_as_many_slots_as_key_channels_unless_told() -> None:
    mixer = mixer_config("gsa", heads=4).build(64)
    assert mixer.state_shapes() == ((4, 16, 16), (4, 16, 16))


@pytest.mark.parametrize("field", ["slots", "head_key", "head_value", "damping"])
def test_sizes_below_one_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        mixer_config("gsa", **{field: 0})
