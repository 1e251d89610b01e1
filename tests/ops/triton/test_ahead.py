"""The kernels compiled ahead of time for GPUs that are not here: tensor cores, shared memory, spills."""

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need Triton: pip install 'prism-sequence[gpu]'")
from prism.ops.triton.ahead import KERNELS, SHARED_LIMIT, TARGETS, Compiled, compile_delta
from prism.ops.triton.around.ahead import KERNELS as AROUND
from prism.ops.triton.around.ahead import compile_around


def check(found: Compiled, L: int) -> None:
    assert found.ordinary == 0
    assert (found.products > 0) == (found.dots > 0)
    assert found.shared <= SHARED_LIMIT[found.target]
    if L <= 2:
        assert found.spilled == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_keeps_to_its_registers_on_an_a100_which_has_the_least(kernel: str) -> None:
    found = compile_delta(kernel, "sm_80", L=2, K=128, V=128)
    check(found, L=2)
    assert (found.dots > 0) == (kernel != "one_token")


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_forward_keeps_to_its_registers_elsewhere(target: str) -> None:
    check(compile_delta("forward_walk", target, L=2, K=64, V=64), L=2)


def test_an_erasure_for_each_direction_compiles_too() -> None:
    for kernel in ("forward_walk", "key_gradients"):
        check(compile_delta(kernel, "sm_90", L=2, K=64, V=64, each=True), L=1)


@pytest.mark.parametrize(
    "kernel", ["conv_backward, norm", "refine_backward", "gated_norm_backward", "tokens_backward, added"]
)
def test_the_largest_kernels_around_the_recurrence_keep_to_their_registers(kernel: str) -> None:
    check(compile_around(kernel, "sm_80"), L=1)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", AROUND)
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_around_the_recurrence_compiles_for_every_target(target: str, kernel: str) -> None:
    check(compile_around(kernel, target), L=1)


@pytest.mark.slow
@pytest.mark.parametrize(("L", "each"), [(1, False), (2, False), (4, False), (2, True)])
@pytest.mark.parametrize("size", [64, 96, 128])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles_for_every_target(target: str, kernel: str, size: int, L: int, each: bool) -> None:
    check(compile_delta(kernel, target, L=L, K=size, V=size, dtype=torch.bfloat16, each=each), L)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kernel", KERNELS)
def test_other_dtypes_compile(kernel: str, dtype: torch.dtype) -> None:
    """float32 operands are twice as wide: these may spill."""
    check(compile_delta(kernel, "sm_90", L=2, K=64, V=64, dtype=dtype), L=3)
