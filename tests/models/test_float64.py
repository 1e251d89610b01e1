"""Where a device has no float64 (Apple's), nothing asks for it; meta tensors stand for such a device's."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prism.layers import MIXERS
from prism.models.backbone import BackboneConfig
from prism.ops.common import backends, device
from prism.ops.softmax_loss import softmax_loss


class Doubles(TorchDispatchMode):
    """Operations with a float64 result on a type of device."""

    found = 0

    def __init__(self, device: str = "meta"):
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.found += sum(x.device.type == self.device and x.dtype == torch.float64 for x in tensors)
        return result


def step(mixer: str) -> int:
    model = BackboneConfig(dim=32, layers=1, mixer=MIXERS[mixer].Config(heads=2)).build().to("meta")
    x, table = torch.empty(2, 70, 32, device="meta"), torch.empty(50, 32, device="meta", requires_grad=True)
    with Doubles() as doubles:
        y, _ = model(x)
        softmax_loss(y.flatten(0, 1), table, torch.empty(140, dtype=torch.long, device="meta")).backward()
    return doubles.found


@pytest.mark.parametrize("mixer", ["prism", "gla", "rwkv7", "mamba2", "attention", "linear-attention"])
def test_a_training_step_asks_for_float64_only_where_there_is_any(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert step(mixer) > 0
    monkeypatch.setattr(device, "WITHOUT_FLOAT64", {"meta"})
    assert step(mixer) == 0


@pytest.mark.parametrize("mixer", ["ttt-linear", "ttt-mlp", "titans", "atlas", "mom", "prism-mom"])
def test_mixers_that_ask_the_host_ask_for_no_float64_either(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tokens lie decides what they compute next, so the CPU's own tensors stand for such a device's."""
    module = MIXERS[mixer].Config(heads=2).build(32)
    monkeypatch.setattr(device, "WITHOUT_FLOAT64", {"cpu"})
    monkeypatch.setattr(backends, "compiles", lambda *given: False)  # the CPU's own kernels are no other device's
    with Doubles("cpu") as doubles:
        y, _ = module(torch.randn(2, 20, 32))
        y.square().sum().backward()
    assert doubles.found == 0
