"""The ordinary launch path with a driver that compiles and runs nothing: every gradient passes through it."""

import pytest
import torch
from support.additions import draw_additions
from support.recurrence import draw

pytest.importorskip("triton", reason="the kernels need Triton: pip install 'prism-sequence[gpu]'")
from support.pretend import pretend

from prism.ops import delta_rule
from prism.ops.conv import Norm
from prism.ops.triton import fused
from prism.ops.triton.softmax_loss import token_losses


@pytest.mark.parametrize("target", ["sm_90", pytest.param("gfx942", marks=pytest.mark.slow)])
def test_the_recurrence_launches_its_kernels_forward_and_backward(target: str) -> None:
    case = draw(1, 40, 2, 2, 16, 16, limits=[0, 7, 40]).to(torch.bfloat16)
    leaves = [x.float() if n > 3 else x for n, x in enumerate(case.tensors())]
    q, k, v, beta, log_alpha, erase, S = (x.requires_grad_() for x in leaves)
    given = {"erase": erase, "initial_state": S, "cu_seqlens": case.cu_seqlens, "output_final_state": True}
    with pretend(target) as launched:
        o, last = delta_rule(q, k, v, beta, log_alpha, **given, backend="triton")
        assert launched == ["forward_walk"]
        grads = torch.autograd.grad((o.float().sum(), last.sum()), leaves)
    assert launched == ["forward_walk", "restore", "walk_back", "value_gradients", "key_gradients"]
    assert [x.shape for x in grads] == [x.shape for x in leaves]
    assert [x.dtype for x in grads] == [x.dtype for x in leaves]


@pytest.mark.parametrize("target", ["sm_80", pytest.param("gfx942", marks=pytest.mark.slow)])
def test_the_parts_around_it_launch_theirs(target: str) -> None:
    x, w, history = torch.randn(2, 9, 32), torch.randn(32, 4), torch.randn(2, 3, 32)
    leaves = [y.bfloat16().requires_grad_() for y in (x, w, history, torch.ones(32), torch.randn(2, 9, 2, 32))]
    x, w, history, weight, p = leaves
    with pretend(target) as launched:
        u = fused.conv_silu(x, w, history=history)
        u = fused.conv_silu(u, w, history=history, norm=Norm(weight, weight, 1e-5))
        y = fused.gated_norm(fused.normalize(u), weight, fused.refine(u, p)[..., 0, :], 1e-6)
        loss = token_losses(
            y.flatten(0, 1), torch.zeros(70, 32).bfloat16(), None, torch.zeros(18).long(), torch.bfloat16
        )
        torch.autograd.grad(loss.sum(), leaves)
    forwards = ["conv_forward", "conv_norm_forward", "unit_forward", "refine_forward", "gated_norm_forward"]
    assert launched[:6] == [*forwards, "loss_forward"]
    assert set(launched[6:]) == {
        "tokens_backward", "items_backward", "gated_norm_backward", "unit_backward", "refine_backward",
        "norm_sums", "conv_backward", "conv_history_backward",
    }  # fmt: skip


def test_the_loss_with_features_added_launches_the_same_kernels() -> None:
    added, _ = draw_additions(40, 70, 2, 1)
    x, table, weights = (torch.randn(*shape).requires_grad_() for shape in ((40, 32), (70, 32), (40, 3)))
    with pretend("sm_90") as launched:
        loss = token_losses(x, table, None, torch.zeros(40).long(), torch.bfloat16, added, weights)
        found = torch.autograd.grad(loss.sum(), (x, table, weights))
    assert launched == ["loss_forward", "tokens_backward", "items_backward"]
    assert [grad.shape for grad in found] == [x.shape, table.shape, weights.shape]


def test_a_program_that_wants_too_much_shared_memory_is_refused_as_a_gpu_would(monkeypatch: pytest.MonkeyPatch) -> None:
    from support import pretend as module
    from triton.runtime.errors import OutOfResources

    monkeypatch.setitem(module.SHARED_LIMIT, "sm_100", 64)
    x = torch.randn(70, 32).bfloat16()
    with pretend("sm_100"), pytest.raises(OutOfResources):
        token_losses(x, x, None, torch.zeros(70).long(), torch.bfloat16)
