"""Transformer++'s attention and SASRec's block against their equations, one token and one head at a time."""

import math

import pytest
import torch
from support.plain import assert_matches, inputs, layer_norm, randomise
from torch import Tensor

from prism.layers import mixer_config
from prism.ops.rotary import rotate

H, D, T = 2, 12, 40
d = D // H


def softmax_read(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    scores = torch.stack([torch.exp(q @ k / math.sqrt(len(q))) for k in keys])
    return sum(s * v for s, v in zip(scores, values, strict=True)) / scores.sum()


def rotated(x: Tensor, place: int) -> Tensor:
    out = [torch.zeros(())] * d
    for i in range(d // 2):
        angle = place * 10000 ** (-2 * i / d)
        a, b, cos, sin = x[i], x[i + d // 2], math.cos(angle), math.sin(angle)
        out[i], out[i + d // 2] = a * cos - b * sin, b * cos + a * sin
    return torch.stack(out)


def attention(mixer, x: Tensor) -> Tensor:
    q, k, v = (x @ mixer.project.weight.T).split([D, D, D], -1)
    keys: list[list[Tensor]] = [[] for _ in range(H)]
    values: list[list[Tensor]] = [[] for _ in range(H)]
    outputs = []
    for t in range(len(x)):
        heads = []
        for h in range(H):
            part = slice(h * d, h * d + d)
            keys[h].append(rotated(k[t, part], t))
            values[h].append(v[t, part])
            heads.append(softmax_read(rotated(q[t, part], t), keys[h], values[h]))
        outputs.append(mixer.out.weight @ torch.cat(heads))
    return torch.stack(outputs)


def sasrec(mixer, x: Tensor) -> Tensor:
    outputs = []
    for t in range(len(x)):
        Q = layer_norm(x[t], 1e-8, mixer.norm.weight, mixer.norm.bias)
        q = mixer.query.weight @ Q + mixer.query.bias
        heads = []
        for h in range(H):
            part = slice(h * d, h * d + d)
            keys = [(mixer.key.weight @ x[j])[part] for j in range(t + 1)]
            values = [(mixer.value.weight @ x[j] + mixer.value.bias)[part] for j in range(t + 1)]
            heads.append(softmax_read(q[part], keys, values))
        F = layer_norm(Q + torch.cat(heads), 1e-8, mixer.ffn_norm.weight, mixer.ffn_norm.bias)
        hidden = (mixer.hidden.weight @ F + mixer.hidden.bias).clamp(min=0)
        outputs.append(F + mixer.ffn_out.weight @ hidden + mixer.ffn_out.bias)
    return torch.stack(outputs)


@pytest.mark.parametrize(("name", "definition"), [("attention", attention), ("sasrec", sasrec)])
def test_the_layer_is_its_equations(name: str, definition) -> None:
    assert_matches(randomise(mixer_config(name, heads=H).build(D)), definition, inputs(T, D))


def test_a_bias_on_the_keys_would_change_nothing() -> None:
    mixer, x = randomise(mixer_config("sasrec", heads=H).build(D)), inputs(T, D)
    before = mixer(x)[0]
    mixer.key.bias = torch.nn.Parameter(torch.randn(D, dtype=torch.float64))
    torch.testing.assert_close(mixer(x)[0], before, rtol=1e-10, atol=1e-11)


def test_rotated_products_depend_on_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 3, 8, dtype=torch.float64)

    def product(p: int, r: int) -> Tensor:
        at = lambda place: torch.tensor([[place]])  # noqa: E731
        return (rotate(q, at(p)) * rotate(k, at(r))).sum(-1)

    torch.testing.assert_close(product(9, 4), product(10_005, 10_000))
    assert (product(9, 4) - product(9, 5)).abs().min() > 1e-4
    torch.testing.assert_close(product(7, 7), (q * k).sum(-1))


def test_dropout_acts_in_training_only() -> None:
    mixer, x = mixer_config("sasrec", heads=H, dropout=0.5).build(D).double(), inputs(T, D)
    assert not torch.equal(mixer(x)[0], mixer(x)[0])
    mixer.eval()
    assert torch.equal(mixer(x)[0], mixer(x)[0])


def test_a_cache_padded_beyond_a_sequence_is_not_read() -> None:
    mixer, x = randomise(mixer_config("attention", heads=H).build(D)), inputs(12, D)
    _, state = mixer(x, cu_seqlens=torch.tensor([0, 3, 12]))
    k, v, lengths = (part[:1] for part in state)
    assert k.shape[1] == 9
    assert lengths.tolist() == [3]
    k[:, 3:], v[:, 3:] = 1e6, 1e6
    torch.testing.assert_close(mixer(x[:, 3:7], (k, v, lengths))[0], mixer(x[:, :7])[0][:, 3:])


def test_heads_of_odd_width_cannot_be_rotated() -> None:
    with pytest.raises(ValueError, match=r"even width, got 12 / 4 = 3"):
        mixer_config("attention", heads=4).build(12)
