"""The blocked softmax loss against plain cross-entropy: values, gradients, memory."""

import pytest
import torch
import torch.nn.functional as F
from support.additions import draw_additions

from prism.ops.softmax_loss import softmax_loss


def operands(N: int = 37, items: int = 23, D: int = 8, dtype: torch.dtype = torch.float64):
    x = torch.randn(N, D, dtype=dtype, requires_grad=True)
    table = torch.randn(items, D, dtype=dtype, requires_grad=True)
    bias = torch.randn(items, dtype=dtype, requires_grad=True)
    return x, table, bias, torch.randint(items, (N,))


def definition(logits: torch.Tensor, targets: torch.Tensor, focus: float) -> torch.Tensor:
    losses = F.cross_entropy(logits, targets, reduction="none")
    return losses.sum() if focus == 0 else ((1 - (-losses).exp() ** focus) / focus).sum()


@pytest.mark.parametrize("tile", [(1, 23), (5, 23), (100, 23), (1, 1), (5, 4), (37, 22), None])
@pytest.mark.parametrize(("biased", "focus"), [(False, 0.0), (True, 0.0), (True, 0.5), (False, 1.0)])
def test_values_and_gradients_are_those_of_cross_entropy(
    tile: tuple[int, int] | None, biased: bool, focus: float
) -> None:
    """Or, with a focus q, those of (1 − p^q) / q."""
    x, table, bias, targets = operands()
    used = (x, table, bias) if biased else (x, table)
    ours = softmax_loss(x, table, targets, bias=bias if biased else None, focus=focus, tile=tile)
    plain = definition(x @ table.T + (bias if biased else 0), targets, focus)
    torch.testing.assert_close(ours, plain)
    for mine, theirs in zip(torch.autograd.grad(3 * ours, used), torch.autograd.grad(3 * plain, used), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("tile", [(2, 4), (2, 3)])
@pytest.mark.parametrize("focus", [0.0, 0.3])
def test_gradients_agree_with_finite_differences(tile: tuple[int, int], focus: float) -> None:
    x, table, bias, targets = operands(N=5, items=4, D=3)
    torch.autograd.gradcheck(
        lambda x, w, b: softmax_loss(x, w, targets, bias=b, focus=focus, tile=tile), (x, table, bias)
    )


@pytest.mark.parametrize("tile", [(2, 2), (1, 1)])
def test_huge_scores_neither_overflow_nor_lose_the_target(tile: tuple[int, int]) -> None:
    x = torch.tensor([[1e4], [-1e4]])
    table = torch.tensor([[1.0], [-1.0]])
    assert softmax_loss(x, table, torch.tensor([0, 1]), tile=tile) == 0
    assert softmax_loss(x, table, torch.tensor([1, 0]), tile=tile) == 4e4


def test_without_gradients_only_the_value_is_computed() -> None:
    x, table, _, targets = operands()
    with torch.no_grad():
        value = softmax_loss(x, table, targets)
    torch.testing.assert_close(value, softmax_loss(x, table, targets).detach())


def test_a_catalogue_too_large_for_the_cache_is_cut_into_tiles() -> None:
    x, table, _, targets = operands(N=3, items=20_000, D=2)
    plain = F.cross_entropy(x @ table.T, targets, reduction="sum")
    torch.testing.assert_close(softmax_loss(x, table, targets), plain)


def test_half_precision_products_come_close_and_gradients_keep_the_weights_dtype() -> None:
    x, table, _, targets = operands(dtype=torch.float32)
    exact = torch.autograd.grad(softmax_loss(x, table, targets), (x, table))
    with torch.autocast("cpu", torch.bfloat16):
        loss = softmax_loss(x, table, targets)
    for fast, full in zip(torch.autograd.grad(loss, (x, table)), exact, strict=True):
        assert fast.dtype == torch.float32
        assert (fast - full).norm() < 0.03 * full.norm()


def test_memory_does_not_grow_with_tokens_times_items() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor):
                self.numbers = max(self.numbers, found.numel())
            return found

    x, table, _, targets = operands(N=4000, items=1000, dtype=torch.float32)
    for tile in ((64, 1000), (256, 200)):
        with Largest() as largest:
            softmax_loss(x, table, targets, tile=tile).backward()
        assert largest.numbers == tile[0] * tile[1]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("tile", [None, (3, 4)])
@pytest.mark.parametrize("focus", [0.0, 0.5])
def test_with_features_added_the_loss_and_all_gradients_are_those_of_the_plain_sum(
    tile: tuple[int, int] | None, compiled: bool, focus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the form that other devices take."""
    monkeypatch.setattr("prism.ops.additions._compiles", lambda weights: compiled)
    monkeypatch.setattr("prism.ops.softmax_loss.BLOCK_ROWS", 1)  # else a tile holds all tokens
    N, items, K, rows = 7, 9, 3, 2
    x, table, bias, weights = (
        torch.randn(*shape, dtype=torch.float64) for shape in ((N, 5), (items, 5), (items,), (N, K + rows))
    )
    added, features = draw_additions(N, items, K, rows, torch.float64)
    targets = torch.randint(items, (N,))
    inputs = [part.requires_grad_() for part in (x, table, bias, weights)]
    ours = softmax_loss(x, table, targets, bias=bias, added=added, weights=weights, focus=focus, tile=tile)
    logits = x @ table.T + bias + (weights[..., None] * features).sum(1)
    wanted = definition(logits, targets, focus)
    torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)
    for a, b in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(wanted, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
