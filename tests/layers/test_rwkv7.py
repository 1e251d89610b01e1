"""RWKV-7's time mixing against its equations, one token and one head at a time."""

import math

import pytest
import torch
from support.plain import assert_matches, inputs, layer_norm, randomise, sigmoid, unit
from torch import Tensor

from prism.layers import mixer_config
from prism.ops.common.shift import previous_token

H, N, D = 2, 6, 12


def build():
    return randomise(mixer_config("rwkv7", heads=H, decay_rank=3, rate_rank=4, gate_rank=5).build(D))


def definition(mixer, x: Tensor) -> Tensor:
    before, S, outputs = torch.zeros(D, dtype=torch.float64), [torch.zeros(N, N, dtype=torch.float64)] * H, []
    for x_t in x:
        r, w, k, v, a, g = (x_t + (before - x_t) * mu for mu in mixer.shift)
        before = x_t
        r, k, v = mixer.receptance.weight @ r, mixer.key.weight @ k, mixer.value.weight @ v
        w = mixer.decay_bias + mixer.decay[2].weight @ torch.tanh(mixer.decay[0].weight @ w)
        w = torch.exp(-math.exp(-0.5) * sigmoid(w))
        a = sigmoid(mixer.rate_bias + mixer.rate[2].weight @ (mixer.rate[0].weight @ a))
        g = mixer.gate[2].weight @ sigmoid(mixer.gate[0].weight @ g)
        kappa, k_new = k * mixer.erase_scale, k * (1 + (a - 1) * mixer.replace_share)
        heads = []
        for h in range(H):
            i = slice(h * N, h * N + N)
            kappa_h = unit(kappa[i])
            transition = torch.diag(w[i]) - torch.outer(kappa_h, a[i] * kappa_h)
            S[h] = S[h] @ transition + torch.outer(v[i], k_new[i])
            read = layer_norm(S[h] @ r[i], 64e-5, mixer.norm_scale[i], mixer.norm_shift[i])
            heads.append(read + (r[i] * k_new[i] * mixer.bonus[h]).sum() * v[i])
        outputs.append(mixer.out.weight @ (torch.cat(heads) * g))
    return torch.stack(outputs)


def test_the_layer_equals_its_definition() -> None:
    assert_matches(build(), definition, inputs(70, D), tolerance=1e-9)


def test_no_channel_loses_more_than_its_bound_in_one_token() -> None:
    mixer = build()
    tokens = 50 * inputs(30, D)
    write = mixer.write(*(tokens for _ in range(5)))
    assert write.log_alpha.min() >= -math.exp(-0.5)
    assert write.log_alpha.max() <= 0


def test_decays_begin_spread_over_the_channels() -> None:
    mixer = mixer_config("rwkv7").build(64)
    half_life = math.log(2) / (math.exp(-0.5) * mixer.decay_bias.detach().sigmoid())
    assert 2 < half_life.min() < 4
    assert 500 < half_life.max() < 1000


def test_the_token_before_is_the_last_of_the_same_sequence() -> None:
    x = torch.arange(12.0).view(1, 6, 2)
    last = torch.tensor([[-1.0, -1], [-2, -2], [-3, -3]])
    before, after = previous_token(x, last=last, cu_seqlens=torch.tensor([0, 2, 2, 6]))
    expected = [[-1.0, -1], [0, 1], [-3, -3], [4, 5], [6, 7], [8, 9]]
    assert before.tolist() == [expected]
    assert after.tolist() == [[2, 3], [-2, -2], [10, 11]]


@pytest.mark.parametrize("field", ["decay_rank", "rate_rank", "gate_rank"])
def test_ranks_below_one_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        mixer_config("rwkv7", **{field: 0})
