"""The compiled backend's own promises: threads, forks, memory, falling back, one token, and the fused parts."""

import multiprocessing
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.recurrence import assert_same, draw, run
from torch import Tensor

from prism.ops import delta_rule, delta_rule_step
from prism.ops.conv import short_conv
from prism.ops.cpu import fused
from prism.ops.cpu import threads as cpu_threads
from prism.ops.solver import refine_reference

# Python 3.12 warns of any fork of a process that has threads, PyTorch's included.
FORKS = pytest.mark.filterwarnings("ignore:.*fork.*")


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch):
    """Sets the number of threads, and has even the smallest work divided."""
    before = torch.get_num_threads()
    monkeypatch.setattr(cpu_threads, "WORTH_A_THREAD", 1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def in_new_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("limits", [None, [0, 1, 70, 70, 200]])
def test_results_do_not_depend_on_the_number_of_threads(threads, limits: list[int] | None) -> None:
    case = draw(1, 200, 3, 2, 17, 23, limits=limits).to(torch.float32)
    results = []
    for count in (1, 2, 3, 7):
        threads(count)
        results.append(run(case, "cpu"))
    for other in results[1:]:
        for name, want in results[0].items():
            assert torch.equal(other[name], want), name


def test_work_is_divided_into_ranges_that_cover_it_once(threads) -> None:
    threads(3)
    for work in ([1], [5, 1, 1, 1], [1, 1, 1, 9], [1] * 8, [0, 0, 4]):
        seen: list[int] = []
        cpu_threads.run(lambda a, b, seen=seen: seen.extend(range(a, b)), np.array(work))
        assert sorted(seen) == list(range(len(work)))


def test_an_error_on_another_thread_reaches_the_caller(threads) -> None:
    def fails_late(begin: int, end: int) -> None:
        if end == 4:
            raise ValueError("on purpose")

    threads(2)
    with pytest.raises(ValueError, match="on purpose"):
        cpu_threads.run(fails_late, np.ones(4, dtype=int))


def _in_child(queue: multiprocessing.Queue, case, expected: Tensor) -> None:
    torch.set_num_threads(2)
    queue.put(torch.equal(run(case, "cpu")["dk"], expected))


@FORKS
def test_a_forked_process_computes_what_its_parent_does(threads) -> None:
    threads(2)
    case = draw(2, 100, 2, 2, 8, 8)
    expected = run(case, "cpu")["dk"]
    assert cpu_threads._pool is not None
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, case, expected))
    child.start()
    assert queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0


class _Outputs(torch.utils.data.Dataset):
    def __init__(self, case):
        self.case = case

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        c = self.case
        return delta_rule(c.q, c.k, c.v, c.beta, c.log_alpha, backend="cpu")[0]


@FORKS
def test_workers_of_a_data_loader_can_use_it(threads) -> None:
    threads(2)
    data = _Outputs(draw(2, 40, 2, 1, 8, 8))
    here = data[0]
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="fork")
    for there in loader:
        assert torch.equal(there, here)


def test_importing_the_operators_does_not_import_numba() -> None:
    assert "False" in in_new_python("import sys, prism.ops, prism.ops.cpu.fused; print('numba' in sys.modules)")


WITHOUT_NUMBA = """
import sys; sys.modules["numba"] = None
import torch
from prism.ops import delta_rule, delta_rule_step
from prism.ops.cpu import fused
x = torch.randn(1, 70, 2, 8)
auto = [delta_rule(x, x, x, x[..., 0].sigmoid())[0] for _ in range(2)][0]
assert torch.equal(auto, delta_rule(x, x, x, x[..., 0].sigmoid(), backend="chunk")[0])
delta_rule_step(x[:, 0], x[:, 0], x[:, 0], x[:, 0, :, 0])
assert not fused.usable(x)
try:
    delta_rule(x, x, x, x[..., 0], backend="cpu")
except ImportError as error:
    print("refused:", error)
"""


def test_without_numba_the_chunk_form_runs_after_one_warning() -> None:
    said = in_new_python(WITHOUT_NUMBA)
    assert said.count("RuntimeWarning") == 1
    assert "without its compiled CPU kernels" in said
    assert "refused: backend 'cpu' cannot be loaded" in said


def test_where_the_compiler_fails_the_chunk_form_runs_after_one_warning() -> None:
    breaks = """
import prism.ops.cpu.delta.forward as forward
def broken(*args): raise RuntimeError("LLVM says no")
forward.forward_range = broken
"""
    said = in_new_python(breaks + WITHOUT_NUMBA.split("\n", 2)[2].rsplit("try:", 1)[0])
    assert said.count("RuntimeWarning") == 1
    assert "LLVM says no" in said


def test_other_devices_are_refused() -> None:
    x = torch.empty(1, 4, 2, 8, device="meta")
    with pytest.raises(ValueError, match="needs tensors on the CPU"):
        delta_rule(x, x, x, x[..., 0], backend="cpu")


@pytest.mark.parametrize(("T", "limits"), [(64, None), (200, None), (1000, None), (200, [0, 3, 70, 200])])
def test_the_forward_keeps_at_most_one_state_for_64_tokens_and_head(T: int, limits: list[int] | None) -> None:
    H, K, V = 2, 8, 12
    case = draw(1, T, H, 2, K, V, limits=limits)
    inputs = {x.requires_grad_().data_ptr() for x in case.tensors()}
    kept: list[int] = []

    def note(x: Tensor) -> Tensor:
        if x.data_ptr() not in inputs:
            kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        q, k, v, beta, log_alpha, erase, S = case.tensors()
        delta_rule(q, k, v, beta, log_alpha, erase=erase, initial_state=S, cu_seqlens=case.cu_seqlens, backend="cpu")
    assert sum(kept) <= T // 64 * H * K * V


def test_scratch_memory_does_not_grow_with_the_length() -> None:
    peaks = []
    for T in (256, 256, 4096):  # the first compiles
        case = draw(1, T, 1, 2, 16, 16)
        tracemalloc.start()
        run(case, "cpu")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.2 * peaks[1]


def test_nothing_is_kept_when_nothing_is_to_be_trained() -> None:
    case = draw(1, 500, 2, 1, 8, 8)
    with torch.no_grad():
        o, _ = delta_rule(case.q, case.k, case.v, case.beta, backend="cpu")
    assert o.grad_fn is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("L", [4, 8])
def test_many_steps_and_odd_sizes_equal_the_definition(L: int, dtype: torch.dtype) -> None:
    case = draw(2, 37, 2, L, 19, 33)
    tight, loose = (1e-10, 1e-9) if dtype == torch.float64 else (1e-4, 1e-4)
    got = {name: x.double() for name, x in run(case.to(dtype), "cpu").items()}
    assert_same(got, run(case, "reference"), tight, loose)


def test_a_decay_of_zero_forgets_everything_and_keeps_gradients_finite() -> None:
    case = draw(1, 40, 2, 2, 8, 8)
    log_alpha = case.log_alpha.clone()
    log_alpha[:, 17] = -torch.inf
    case = replace(case, log_alpha=log_alpha)
    assert_same(run(case, "cpu"), run(case, "reference"), 1e-10, 1e-9)


def test_a_nan_reaches_every_later_output() -> None:
    case = draw(1, 100, 1, 1, 8, 8)
    case.v[0, 50, 0, 0, 3] = torch.nan
    o, S = delta_rule(case.q, case.k, case.v, case.beta, backend="cpu", output_final_state=True)
    assert o[0, 50:, 0, 3].isnan().all()
    assert S[0, 0, 3].isnan().all()
    assert o[0, :48].isfinite().all()


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    case = draw(1, 5, 1, 1, 4, 4)
    q = case.q.requires_grad_()
    o, _ = delta_rule(q, case.k, case.v, case.beta, backend="cpu")
    (dq,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        dq.sum().backward()


def test_bfloat16_is_computed_in_float32() -> None:
    case = draw(1, 100, 2, 2, 8, 8).to(torch.bfloat16)
    o, S = delta_rule(case.q, case.k, case.v, case.beta, case.log_alpha, output_final_state=True)
    wide = case.to(torch.float32)
    expected, S_expected = delta_rule(wide.q, wide.k, wide.v, wide.beta, wide.log_alpha, output_final_state=True)
    assert o.dtype == torch.bfloat16
    assert torch.equal(o, expected.bfloat16())
    assert torch.equal(S, S_expected)


@pytest.mark.parametrize("L", [1, 3])
def test_one_token_at_a_time_equals_the_definition(L: int, threads) -> None:
    threads(2)
    c = draw(3, 9, 2, L, 7, 10)
    expected, S_expected = delta_rule(
        c.q, c.k, c.v, c.beta, c.log_alpha, erase=c.erase, scale=c.scale, initial_state=c.initial_state,
        output_final_state=True, backend="reference",
    )  # fmt: skip
    S = given = c.initial_state
    kept = given.clone()
    for t in range(9):
        o, S = delta_rule_step(
            c.q[:, t],
            c.k[:, t],
            c.v[:, t],
            c.beta[:, t],
            c.log_alpha[:, t],
            erase=c.erase[:, t],
            scale=c.scale,
            state=S,
        )
        torch.testing.assert_close(o, expected[:, t], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(S, S_expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(given, kept)  # a state is a value: the step writes a new one


def test_one_token_carries_gradients_when_they_are_asked_for() -> None:
    c = draw(2, 1, 2, 2, 4, 5)
    leaves = [x.requires_grad_() for x in (c.q, c.k, c.v, c.beta, c.log_alpha, c.initial_state)]
    q, k, v, beta, log_alpha, S = leaves
    grads = []
    for o, last in (
        delta_rule_step(q[:, 0], k[:, 0], v[:, 0], beta[:, 0], log_alpha[:, 0], state=S),
        delta_rule(q, k, v, beta, log_alpha, initial_state=S, output_final_state=True, backend="reference"),
    ):
        grads.append(torch.autograd.grad(o.square().sum() + last.square().sum(), leaves))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("features", ["+avx,+avx2,+fma", "+sse2"])
def test_machines_with_narrower_vectors_compute_the_same(features: str, tmp_path) -> None:
    """Compiled for an older machine; a vector of 64 bytes would be an illegal instruction there."""
    code = """
import torch
from prism.ops import delta_rule
from prism.ops.cpu import tile as cpu_tile
torch.manual_seed(0)
x = torch.randn(1, 50, 2, 2, 24, dtype=torch.float64, requires_grad=True)
outs = []
for backend in ("cpu", "reference"):
    o, _ = delta_rule(x[:, :, :, 0], x / 5, x, x[..., 0].sigmoid(), backend=backend)
    outs.append(torch.cat([o.flatten(), torch.autograd.grad(o.square().sum(), x)[0].flatten()]))
print(cpu_tile.BYTES, torch.allclose(*outs))
"""
    said = in_new_python(code, NUMBA_CPU_NAME="x86-64", NUMBA_CPU_FEATURES=features, NUMBA_CACHE_DIR=str(tmp_path))
    assert said.split() == ["32" if "avx" in features else "16", "True"]


def _same_with_gradients(ours, theirs, leaves: list[Tensor], tolerance: float) -> None:
    results = []
    for f in (ours, theirs):
        y = f(*leaves)
        weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        grads = torch.autograd.grad((y * weights).sum(), leaves, allow_unused=True, materialize_grads=True)
        results.append([y, *grads])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])


@DTYPES
@pytest.mark.parametrize("L", [1, 2, 5])
def test_the_fused_refinement_is_the_definition(L: int, dtype: torch.dtype, tolerance: float, threads) -> None:
    threads(3)
    leaves = [torch.randn(s, dtype=dtype).requires_grad_() for s in ((2, 31, 3, 19), (2, 31, 3, L, 19))]
    _same_with_gradients(fused.refine, lambda r, p: refine_reference(r, p, L), leaves, tolerance)


@DTYPES
def test_the_fused_normalisation_is_the_definition_also_of_tiny_and_zero_vectors(
    dtype: torch.dtype, tolerance: float
) -> None:
    x = torch.randn(4, 50, 2, 19, dtype=dtype)
    x[0, 0] = 0
    x[0, 1] *= 1e-9
    _same_with_gradients(fused.normalize, lambda x: F.normalize(x, dim=-1, eps=1e-6), [x.requires_grad_()], tolerance)


@DTYPES
@pytest.mark.parametrize("W", [1, 2, 5])
@pytest.mark.parametrize("T", [0, 1, 3, 16, 33])
def test_the_fused_convolution_is_the_definition(W: int, T: int, dtype: torch.dtype, tolerance: float, threads) -> None:
    threads(3)
    shapes = ((2, T, 19), (19, W), (2, W - 1, 19))
    leaves = [torch.randn(s, dtype=dtype).requires_grad_() for s in shapes]
    _same_with_gradients(
        lambda x, w, h: fused.conv_silu(x, w, history=h),
        lambda x, w, h: F.silu(short_conv(x, w, history=h)[0]),
        leaves,
        tolerance,
    )


@pytest.mark.parametrize("W", [2, 5])
def test_the_fused_convolution_keeps_packed_sequences_apart(W: int) -> None:
    cu = torch.tensor([0, 2, 2, 20, 21, 57])
    leaves = [torch.randn(s, dtype=torch.float64).requires_grad_() for s in ((1, 57, 19), (19, W), (5, W - 1, 19))]
    _same_with_gradients(
        lambda x, w, h: fused.conv_silu(x, w, history=h, bounds=tuple(cu.tolist())),
        lambda x, w, h: F.silu(short_conv(x, w, history=h, cu_seqlens=cu)[0]),
        leaves,
        1e-11,
    )


def test_the_fused_parts_let_infinities_and_nan_through() -> None:
    x = torch.tensor([[-torch.inf, torch.inf, torch.nan, 100.0, -100.0]])
    p = torch.ones(1, 1, 5)
    expected = F.gelu(x.double()).float()  # PyTorch's own float32 makes a NaN of GELU(inf)
    torch.testing.assert_close(fused.refine(x, p)[:, 0], expected, equal_nan=True)
    torch.testing.assert_close(fused.conv_silu(x[None], torch.ones(5, 1)), F.silu(x[None]), equal_nan=True)


def test_the_fused_parts_are_not_for_half_precision_or_mixed_dtypes() -> None:
    x = torch.zeros(2, 3)
    assert fused.usable(x, None)
    assert not fused.usable(x.bfloat16())
    assert not fused.usable(x, x.double())


def test_a_change_in_any_kernel_file_makes_the_cache_stale(tmp_path: Path) -> None:
    """numba looks at the kernel's own file alone."""
    from prism.ops.cpu import compiling as cpu_compile
    from prism.ops.cpu.delta import forward as cpu_forward
    from prism.recommend.evaluation.baselines import neighbours

    for kernel, folder in ((cpu_forward.forward_range, "ops/cpu"), (neighbours.nearest, "evaluation/baselines")):
        file = Path(kernel.py_func.__code__.co_filename)
        (whole,) = (above for above in file.parents if str(above).endswith(folder))
        assert kernel._cache._cache_file._source_stamp == cpu_compile._sources(whole)
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "one.py").write_text("a = 1")
    before = cpu_compile._sources.__wrapped__(tmp_path)
    (tmp_path / "deeper" / "one.py").write_text("a = 2")
    assert cpu_compile._sources.__wrapped__(tmp_path) != before
