"""Mixed precision: float32 weights under autocast to bfloat16, forwards, onwards from a state, and backwards."""

import pytest
import torch

from prism.layers import MIXERS, mixer_config


@pytest.mark.parametrize(("name", "fields"), [*((name, {}) for name in MIXERS), ("prism", {"base_write": True})])
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch: RMSNorm is then not fused
def test_autocast_stays_near_float32(name: str, fields: dict[str, bool]) -> None:
    mixer = mixer_config(name, heads=2, **fields).build(32)
    x, times = torch.randn(2, 70, 32), torch.arange(280).view(2, 70, 2)
    exact, state = mixer(x, times=times)
    last, _ = mixer.step(x[:, 0], state, times=times[:, -1])
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x, times=times)
        z, _ = mixer.step(x[:, 0], state, times=times[:, -1])
    for low, high in ((y, exact), (z, last)):
        assert ((low.float() - high).norm() / high.norm()).item() < 0.1
    y.float().square().sum().backward()
    for parameter_name, parameter in mixer.named_parameters():
        assert parameter.grad.dtype == torch.float32, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name
