"""The parts around the recurrence as kernels, in the interpreter, against their definitions in float64."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.additions import draw_additions
from support.recurrence import error_ratio
from torch import Tensor

from prism.ops.conv import Norm, short_conv
from prism.ops.softmax_loss import softmax_loss
from prism.ops.solver import refine_reference

fused = pytest.importorskip("prism.ops.triton.fused")
losses = pytest.importorskip("prism.ops.triton.softmax_loss")


def assert_near(
    ours: Callable[..., Tensor], definition: Callable[..., Tensor], *given: Tensor, tolerance: float = 1e-5
) -> None:
    """Values and every gradient, from float32 (or half precision) operands."""
    found = []
    for function, dtype in ((ours, None), (definition, torch.float64)):
        leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in given]
        y = function(*leaves)
        g = torch.Generator().manual_seed(1)
        weight = torch.randn(y.shape, dtype=torch.float64, generator=g)
        found.append((y.detach(), *torch.autograd.grad((y.double() * weight).sum(), leaves)))
    for n, (got, want) in enumerate(zip(*found, strict=True)):
        assert got.shape == want.shape
        assert torch.isfinite(got).all(), n
        if want.numel():
            assert error_ratio(got, want) <= tolerance, f"{n}: {error_ratio(got, want):.1e}"


@pytest.mark.parametrize(("L", "V"), [(1, 16), (3, 21)])
def test_the_refinement_loop_equals_its_definition(L: int, V: int) -> None:
    r, p = torch.randn(2, 33, V), 1 + 0.3 * torch.randn(2, 33, L, V)
    assert_near(fused.refine, lambda r, p: refine_reference(r, p, L), r, p)


def test_the_refinement_loop_takes_half_precision() -> None:
    r, p = torch.randn(9, 16).bfloat16(), torch.randn(9, 2, 16).bfloat16()
    assert_near(fused.refine, lambda r, p: refine_reference(r, p, 2), r, p, tolerance=1e-2)


def test_unit_vectors_equal_their_definition_and_zero_stays_zero() -> None:
    x = torch.randn(5, 7, 12)
    x[0, 0] = 0
    assert_near(fused.normalize, lambda x: F.normalize(x, dim=-1, eps=1e-6), x)


def test_the_gated_norm_equals_its_definition() -> None:
    o, weight, gate = torch.randn(200, 3, 20), torch.randn(20), torch.randn(200, 3, 20)
    definition = lambda o, w, g: F.rms_norm(o, (20,), w, 1e-6) * F.silu(g)  # noqa: E731
    assert_near(lambda o, w, g: fused.gated_norm(o, w, g, 1e-6), definition, o, weight, gate)


@pytest.mark.parametrize("W", [1, 2, 5])
def test_the_convolution_equals_its_definition(W: int) -> None:
    x, weight, history = torch.randn(2, 37, 67), torch.randn(67, W), torch.randn(2, W - 1, 67)
    ours = lambda x, w, h: fused.conv_silu(x, w, history=h)  # noqa: E731
    assert_near(ours, lambda x, w, h: F.silu(short_conv(x, w, history=h)[0]) + 0 * h.sum(), x, weight, history)


def test_packed_convolutions_do_not_see_each_other() -> None:
    limits = (0, 0, 2, 3, 40)
    x, weight, history = torch.randn(1, 40, 3), torch.randn(3, 4), torch.randn(4, 3, 3)
    ours = lambda x, w, h: fused.conv_silu(x, w, history=h, bounds=limits)  # noqa: E731
    cu_seqlens = torch.tensor(limits)
    assert_near(ours, lambda x, w, h: F.silu(short_conv(x, w, history=h, cu_seqlens=cu_seqlens)[0]), x, weight, history)


@pytest.mark.parametrize(("D", "W", "bounds"), [(67, 5, None), (130, 1, None), (5, 3, (0, 0, 2, 3, 37))])
def test_the_convolution_with_its_norm_equals_its_definition(D: int, W: int, bounds: tuple[int, ...] | None) -> None:
    """Of one block of channels and of three; also where the mean is far from 0."""
    B, N = (2, 2) if bounds is None else (1, 4)
    x, weight, history = 5 + torch.randn(B, 37, D), torch.randn(D, W), torch.randn(N, W - 1, D)
    gamma, beta = torch.randn(D), torch.randn(D)
    limits = None if bounds is None else torch.tensor(bounds)

    def ours(x: Tensor, w: Tensor, h: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return fused.conv_silu(x, w, history=h, bounds=bounds, norm=Norm(gamma, beta, 1e-5))

    def definition(x: Tensor, w: Tensor, h: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        u = F.silu(short_conv(x, w, history=h, cu_seqlens=limits)[0])
        return F.layer_norm(u, (D,), gamma, beta, 1e-5) + 0 * h.sum()

    assert_near(ours, definition, x, weight, history, gamma, beta)


def test_the_norm_behind_a_convolution_keeps_its_dtype_and_wider_weights() -> None:
    x, weight, history = torch.randn(1, 9, 20).bfloat16(), torch.randn(20, 3), torch.randn(1, 2, 20).bfloat16()
    gamma, beta = torch.randn(20), torch.randn(20)

    def ours(x: Tensor, w: Tensor, h: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return fused.conv_silu(x, w, history=h, norm=Norm(gamma, beta, 1e-5), dtype=torch.float32)

    def definition(x: Tensor, w: Tensor, h: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return F.layer_norm(F.silu(short_conv(x, w, history=h)[0]), (20,), gamma, beta, 1e-5)

    assert ours(x, weight, history, gamma, beta).dtype == torch.float32
    assert_near(ours, definition, x, weight, history, gamma, beta, tolerance=1e-2)


@pytest.mark.parametrize("biased", [False, True])
def test_the_blocked_loss_equals_its_definition(biased: bool) -> None:
    x, table, bias, targets = torch.randn(70, 20), torch.randn(130, 20), torch.randn(130), torch.randint(130, (70,))
    given = (x, table, bias) if biased else (x, table)

    def ours(x: Tensor, table: Tensor, bias: Tensor | None = None) -> Tensor:
        return losses.token_losses(x, table, bias, targets, torch.float32)

    def definition(x: Tensor, table: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.cross_entropy(F.linear(x, table, bias), targets, reduction="none")

    assert_near(ours, definition, *given)


@pytest.mark.parametrize(("N", "items", "K", "F"), [(70, 130, 3, 2), (9, 5, 2, 0)])
def test_the_blocked_loss_with_features_added_equals_its_definition(N: int, items: int, K: int, F: int) -> None:
    x, table, bias, weights = torch.randn(N, 6), torch.randn(items, 6), torch.randn(items), torch.randn(N, K + F)
    added, features = draw_additions(N, items, K, F)
    targets = torch.randint(items, (N,))
    targets[:3] = added.items[:3]  # of the first token's entries, one that is the target

    def ours(x: Tensor, table: Tensor, bias: Tensor, weights: Tensor) -> Tensor:
        return losses.token_losses(x, table, bias, targets, torch.float32, added, weights)

    def definition(x: Tensor, table: Tensor, bias: Tensor, weights: Tensor) -> Tensor:
        scores = x @ table.T + bias + (weights[..., None] * features).sum(1)
        return torch.nn.functional.cross_entropy(scores, targets, reduction="none")

    assert_near(ours, definition, x, table, bias, weights)


def test_the_sum_of_losses_is_that_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from prism.ops import softmax_loss as module
    from prism.ops.common import device

    x, table, targets = torch.randn(9, 6), torch.randn(11, 6), torch.randint(11, (9,))
    experts = {"added": draw_additions(9, 11, 2, 1)[0], "weights": torch.randn(9, 3)}
    want = [softmax_loss(x, table, targets, **more) for more in ({}, experts)]
    monkeypatch.setattr(device, "GPUS", {"cpu"})
    monkeypatch.setattr(module, "_whole", None)  # the CPU's form
    for more, wanted in zip(({}, experts), want, strict=True):
        torch.testing.assert_close(softmax_loss(x, table, targets, **more), wanted)


def test_huge_scores_neither_overflow_nor_lose_the_target() -> None:
    x, table = torch.tensor([[1e4], [-1e4]]), torch.tensor([[1.0], [-1.0]])
    for targets, want in (([0, 1], 0.0), ([1, 0], 2e4)):
        found = losses.token_losses(x, table, None, torch.tensor(targets), torch.float32)
        assert found.tolist() == [want, want]
