"""No launch asks for more programs than CUDA's grid has, however much there is: no memory is taken, no kernel runs."""

from collections.abc import Iterator

import pytest
import torch
from support.waits import meta_for_gpu
from torch import Tensor

pytest.importorskip("triton", reason="the kernels need Triton: pip install 'prism-sequence[gpu]'")
from triton.runtime.jit import JITFunction

from prism.ops import delta_rule, delta_rule_step
from prism.ops.common.packing import Packing
from prism.ops.conv import Norm
from prism.ops.triton import ahead, fused
from prism.ops.triton.around import ahead as around
from prism.ops.triton.softmax_loss import token_losses

# The most programs in x, y and z.
LIMITS = (2**31 - 1, 65_535, 65_535)
MANY = 70_000  # sequences or users
LONG = 2**24  # rows: 2²⁰ chunks, 2¹⁷ spans
LOSS = {"loss_forward", "tokens_backward", "items_backward"}
Grids = list[tuple[str, tuple[int, ...]]]


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta", requires_grad=True)


def differentiate(*outputs: Tensor) -> None:
    torch.stack([y.float().sum() for y in outputs]).sum().backward()


@pytest.fixture
def grids(monkeypatch: pytest.MonkeyPatch) -> Iterator[Grids]:
    """The kernels launched inside, in order, each with its grid."""
    found: Grids = []
    with meta_for_gpu(monkeypatch):
        monkeypatch.setattr(JITFunction, "run", lambda self, *_, grid, **__: found.append((self.__name__, grid)))
        yield found


def check(grids: Grids, kernels: set[str]) -> None:
    """These were launched, and could be."""
    assert {name for name, _ in grids} == kernels
    refused = [(name, grid) for name, grid in grids if any(n > most for n, most in zip(grid, LIMITS, strict=False))]
    assert refused == []


@pytest.mark.parametrize(
    ("B", "T", "bounds"),
    [(1, LONG, None), (1, LONG, (0, 5, LONG)), (MANY, 1, None), (1, MANY, tuple(range(MANY + 1)))],
    ids=["long", "long, packed", "many", "many, packed"],
)
@pytest.mark.parametrize("each", [False, True])
def test_the_recurrence_takes_any_length_and_any_number_of_sequences(
    B: int, T: int, bounds: tuple[int, ...] | None, each: bool, grids: Grids
) -> None:
    """Keys and values of several blocks."""
    H, L, K, V = 2, 2, 128, 160
    q, k, v = meta(B, T, H, K), meta(B, T, H, L, K), meta(B, T, H, L, V)
    given = {"erase": meta(B, T, H, L) if each else meta(B, T, H), "output_final_state": True, "backend": "triton"}
    packing = None if bounds is None else Packing(bounds)
    differentiate(*delta_rule(q, k, v, meta(B, T, H, L), meta(B, T, H), cu_seqlens=packing, **given))
    check(grids, set(ahead.KERNELS) - {"one_token"})


def test_a_step_takes_any_number_of_users(grids: Grids) -> None:
    N, H, L, K, V = MANY, 2, 2, 64, 64
    with torch.no_grad():
        delta_rule_step(meta(N, H, K), meta(N, H, L, K), meta(N, H, L, V), meta(N, H, L), meta(N, H))
    check(grids, {"one_token"})


@pytest.mark.parametrize(("B", "T"), [(1, LONG), (MANY, 1)], ids=["long", "many"])
def test_the_parts_around_it_take_any_number_of_rows(B: int, T: int, grids: Grids) -> None:
    D, W = 128, 4
    u = fused.conv_silu(meta(B, T, D), meta(D, W), history=meta(B, W - 1, D))
    u = fused.conv_silu(u, meta(D, W), history=meta(B, W - 1, D), norm=Norm(meta(D), meta(D), 1e-5))
    r = fused.refine(fused.normalize(u), meta(B, T, 2, D))[..., 0, :]
    differentiate(fused.gated_norm(r, meta(D), u, 1e-6))
    check(grids, {name.split(",")[0] for name in around.KERNELS} - LOSS)


@pytest.mark.parametrize(("N", "items"), [(LONG, 100), (100, LONG)], ids=["tokens", "items"])
def test_the_loss_takes_any_number_of_tokens_and_of_items(N: int, items: int, grids: Grids) -> None:
    targets = torch.empty(N, dtype=torch.long, device="meta")
    differentiate(token_losses(meta(N, 64), meta(items, 64), None, targets, torch.bfloat16))
    check(grids, LOSS)
