"""Mamba-2 against its equations, and against the implementation in transformers."""

import pytest
import torch
from support.plain import assert_matches, convolved, inputs, randomise, rms_norm, silu, softplus
from torch import Tensor

from prism.layers import mixer_config

H, K, D = 3, 5, 12
V = 2 * D // H


def definition(mixer, x: Tensor) -> Tensor:
    z, mixed, logits = (x @ mixer.project.weight.T).split([H * V, H * V + 2 * K, H], -1)
    values, B, C = silu(convolved(mixed, mixer.conv.weight) + mixer.conv.bias).split([H * V, K, K], -1)
    S = [torch.zeros(V, K, dtype=torch.float64) for _ in range(H)]
    outputs = []
    for t in range(len(x)):
        heads = []
        for h in range(H):
            v = values[t, h * V : h * V + V]
            step = softplus(logits[t, h] + mixer.decay.bias[h])
            S[h] = torch.exp(-step * torch.exp(mixer.decay.log_rate[h])) * S[h] + step * torch.outer(v, B[t])
            heads.append(S[h] @ C[t] + mixer.skip[h] * v)
        y = rms_norm(torch.cat(heads) * silu(z[t]), mixer.norm.weight, 1e-5)
        outputs.append(mixer.out.weight @ y)
    return torch.stack(outputs)


def test_the_layer_is_its_equations() -> None:
    mixer = randomise(mixer_config("mamba2", heads=H, state=K).build(D))
    assert_matches(mixer, definition, inputs(70, D))


def test_transformers_computes_the_same_layer() -> None:
    pytest.importorskip("transformers")
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = Mamba2Config(
        hidden_size=32, num_heads=4, head_dim=16, state_size=24, n_groups=1, chunk_size=16, num_hidden_layers=1
    )
    theirs = Mamba2Mixer(config, layer_idx=0)
    ours = mixer_config("mamba2", heads=4, state=24).build(32)
    torch.nn.init.normal_(theirs.conv1d.bias)
    ours.load_state_dict(
        {
            "project.weight": theirs.in_proj.weight,
            "conv.weight": theirs.conv1d.weight.squeeze(1),
            "conv.bias": theirs.conv1d.bias,
            "decay.log_rate": theirs.A_log,
            "decay.bias": theirs.dt_bias,
            "skip": theirs.D,
            "norm.weight": theirs.norm.weight,
            "out.weight": theirs.out_proj.weight,
        }
    )
    x = torch.randn(2, 50, 32)
    torch.testing.assert_close(ours(x)[0], theirs(x), rtol=1e-4, atol=1e-5)


def test_heads_must_divide_the_inner_width() -> None:
    with pytest.raises(ValueError, match="dim 48 does not divide by heads 5"):
        mixer_config("mamba2", heads=5).build(24)
