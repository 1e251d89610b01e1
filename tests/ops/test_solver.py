"""The refinement loop: its equations, its ablations, its Lipschitz bound."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from prism.ops.solver import refine


def test_each_step_corrects_what_the_one_before_left() -> None:
    r, p = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, 3, dtype=torch.float64)
    first = F.gelu(p[:, 0] * r)
    second = F.gelu(p[:, 1] * (r - first))
    third = F.gelu(p[:, 2] * (r - first - second))
    torch.testing.assert_close(refine(r, p, 3), torch.stack([first, second, third], 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # fused and not
def test_fewer_steps_than_gains_take_the_first_ones_and_more_are_refused(dtype: torch.dtype) -> None:
    r, p = torch.randn(4, 3, dtype=dtype), torch.randn(4, 3, 3, dtype=dtype)
    torch.testing.assert_close(refine(r, p, 2), refine(r, p, 3)[:, :2])
    with pytest.raises(ValueError, match="p must have gains for steps = 4, got 3"):
        refine(r, p, 4)


def test_without_residual_every_step_sees_the_first_one() -> None:
    r, p = torch.randn(4, 3), torch.randn(4, 2, 3)
    torch.testing.assert_close(refine(r, p, 2, residual="none"), F.gelu(p * r[:, None]))


def test_identity_without_gain_writes_the_residual_once_and_then_nothing() -> None:
    r = torch.randn(4, 3)
    delta = refine(r, None, 3, nonlinearity="identity")
    assert torch.equal(delta[:, 0], r)
    assert not delta[:, 1:].any()


@given(steps=st.integers(1, 4), most=st.floats(0.1, 2.0), seed=st.integers(0, 99))
def test_a_disturbed_residual_moves_each_correction_by_at_most_its_bound(steps: int, most: float, seed: int) -> None:
    """Lemma "Lipschitz Stability": step l alone is M·L_φ; through the steps before, r grows by at most 1 + M·L_φ."""
    g = torch.Generator().manual_seed(seed)
    r, epsilon = torch.randn(2, 50, 8, dtype=torch.float64, generator=g)
    p = most * (2 * torch.rand(50, steps, 8, dtype=torch.float64, generator=g) - 1)
    slope = 1.1290  # the largest |GELU'|
    moved = (refine(r + 0.1 * epsilon, p, steps) - refine(r, p, steps)).norm(dim=-1)
    size = 0.1 * epsilon.norm(dim=-1)
    for l in range(steps):
        assert (moved[:, l] <= slope * most * (1 + slope * most) ** l * size + 1e-12).all()
