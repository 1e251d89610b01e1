"""A layer whose tensors count as a GPU's: every kernel in its place, in the interpreter, against the CPU's form."""

from contextlib import nullcontext

import pytest
import torch
from support.recurrence import error_ratio
from torch import Tensor

from prism.layers import MIXERS
from prism.ops.common import device

fused = pytest.importorskip("prism.ops.triton.fused")
PARTS = ("refine", "normalize", "gated_norm", "conv_silu")


def run(mixer: torch.nn.Module, x: Tensor, fast: bool) -> list[Tensor]:
    """Output, state and the gradient of everything."""
    with torch.autocast("cpu", torch.bfloat16) if fast else nullcontext():
        y, state = mixer(x, cu_seqlens=torch.tensor([0, 4, 9]))
    grads = torch.autograd.grad(y.float().square().sum() + state[-1].sum(), [x, *mixer.parameters()])
    return [y, *state, *grads]


@pytest.mark.parametrize(("fast", "tolerance"), [(False, 1e-5), (True, 5e-2)])
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch: RMSNorm is then not fused
def test_a_layer_on_the_kernels_equals_itself_without_them(
    fast: bool, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under autocast too, where weights are wider than what they meet: no part is left to PyTorch."""
    mixer = MIXERS["prism"].Config(heads=2, steps=2).build(16)
    x = torch.randn(1, 9, 16, requires_grad=True)
    want = run(mixer, x, fast)
    called = []
    for name in PARTS:
        part = getattr(fused, name)
        monkeypatch.setattr(fused, name, lambda *a, name=name, part=part, **k: called.append(name) or part(*a, **k))
    monkeypatch.setattr(device, "GPUS", {"cpu"})
    got = run(mixer, x, fast)
    assert set(called) == set(PARTS)
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.dtype == b.dtype, n
        assert error_ratio(a, b) <= tolerance, f"{n}: {error_ratio(a, b):.1e}"
