"""The kernels compiled ahead of time for GPUs that are not here: tensor cores, shared memory, spills."""

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need Triton: pip install 'prism-sequence[gpu]'")
from prism.ops.triton.ahead import KERNELS, SHARED_LIMIT, TARGETS, Compiled, compile_delta

# Kernels that keep everything in registers; the others spill (docs/gpu.md has the table).
WITHOUT_SPILLS = {"prepare"}


def check(found: Compiled) -> None:
    assert found.products > 0
    assert found.shared <= SHARED_LIMIT[found.target]
    if found.kernel in WITHOUT_SPILLS:
        assert found.spilled == 0


def test_one_kernel_compiles_for_an_h100() -> None:
    check(compile_delta("prepare", "sm_90", L=2, K=64, V=64))


@pytest.mark.slow
@pytest.mark.parametrize("L", [1, 2, 4])
@pytest.mark.parametrize("size", [64, 96, 128])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles_for_every_target(target: str, kernel: str, size: int, L: int) -> None:
    check(compile_delta(kernel, target, L=L, K=size, V=size, dtype=torch.bfloat16))
