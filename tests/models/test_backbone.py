"""The backbone: blocks of any mixers, split and packed, hybrids, checkpointing."""

import pytest
import torch

from prism.errors import InputError
from prism.layers import MIXERS, mixer_config
from prism.models.backbone import BackboneConfig
from prism.ops.common.backends import compiles


def hybrid(**fields: object):
    mixers = tuple(mixer_config(name, heads=2) for name in ("prism", "linear-attention", "gated-deltanet"))
    torch.manual_seed(0)
    return BackboneConfig(dim=16, layers=3, mixer=mixers, **fields).build().double()


def test_a_hybrid_runs_token_by_token_as_it_does_at_once() -> None:
    model, x = hybrid(), torch.randn(2, 20, 16, dtype=torch.float64)
    whole, _ = model(x)
    first, state = model(x[:, :7])
    steps = []
    for t in range(7, 20):
        y, state = model.step(x[:, t], state)
        steps.append(y)
    torch.testing.assert_close(torch.cat([first, torch.stack(steps, 1)], 1), whole)
    assert model.state_size() == sum(part[0].numel() for layer in state for part in layer)


def test_packed_sequences_equal_separate_ones() -> None:
    model, x = hybrid(), torch.randn(1, 20, 16, dtype=torch.float64)
    packed, _ = model(x, cu_seqlens=torch.tensor([0, 6, 20]))
    torch.testing.assert_close(packed[:, :6], model(x[:, :6])[0])
    torch.testing.assert_close(packed[:, 6:], model(x[:, 6:])[0])


def test_checkpointing_changes_memory_and_not_gradients() -> None:
    x, grads = torch.randn(2, 20, 16, dtype=torch.float64), []
    for checkpointed in (False, True):
        model = hybrid(checkpoint=checkpointed)
        model(x)[0].square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_checkpointing_works_in_the_very_step_that_loads_the_kernels() -> None:
    compiles.cache_clear()
    hybrid(checkpoint=True)(torch.randn(2, 20, 16, dtype=torch.float64))[0].sum().backward()
    assert compiles.cache_info().misses


@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_last_token_alone_has_the_same_features_and_gradients(checkpointed: bool) -> None:
    x, found = torch.randn(2, 20, 16, dtype=torch.float64), []
    for last in (False, True):
        model = hybrid(checkpoint=checkpointed)
        y = model(x, last=last)[0][:, -1]
        y.square().sum().backward()
        found.append([y, *(p.grad for p in model.parameters())])
    assert model(x, last=True)[0].shape == (2, 1, 16)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_dropout_acts_in_training_alone() -> None:
    model, x = hybrid(dropout=0.5), torch.randn(2, 20, 16, dtype=torch.float64)
    assert not torch.equal(model(x)[0], model(x)[0])
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])


@pytest.mark.parametrize("name", list(MIXERS))
def test_the_residual_stream_keeps_its_size_through_many_layers(name: str) -> None:
    torch.manual_seed(0)
    model = BackboneConfig(dim=32, layers=12, mixer=mixer_config(name, heads=2)).build()
    x = torch.randn(2, 40, 32)
    for block in model.blocks:
        x, _ = block(x, None, None, None)
    assert 0.5 < x.std() < 3


def test_a_wrong_list_of_mixers_is_refused() -> None:
    with pytest.raises(InputError, match="mixer lists 1 mixers for layers = 2"):
        BackboneConfig(layers=2, mixer=(mixer_config("prism"),))
    with pytest.raises(InputError, match=r"dropout must be in \[0, 1\), got 1.5"):
        BackboneConfig(dropout=1.5)
    with pytest.raises(ValueError, match="one entry for each of 3 blocks, got 1"):
        hybrid()(torch.randn(1, 2, 16, dtype=torch.float64), ((),))
