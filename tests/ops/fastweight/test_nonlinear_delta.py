"""The ideal solver against gradient descent on its loss, and against the rules it contains."""

import inspect
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from prism.ops import delta_rule
from prism.ops.fastweight.nonlinear_delta import nonlinear_delta

B, T, H, K, V = 2, 70, 2, 5, 4
PHI = {"gelu": F.gelu, "tanh": torch.tanh, "identity": lambda y: y}


def operands(steps: int | None, length: int = T, batch: int = B) -> dict[str, Tensor]:
    d = torch.float64
    axes = (batch, length, H)
    beta = torch.rand(*axes, dtype=d) if steps is None else torch.rand(*axes, steps, dtype=d)
    return {
        "q": torch.randn(*axes, K, dtype=d),
        "k": F.normalize(torch.randn(*axes, K, dtype=d), dim=-1) * 1.1,
        "v": torch.randn(*axes, V, dtype=d),
        "beta": beta,
        "log_alpha": -0.2 * torch.rand(*axes, dtype=d),
    }


def definition(x: dict[str, Tensor], S: Tensor, steps: int, phi: str, scale: float) -> tuple[Tensor, Tensor]:
    """One token at a time, every gradient of ½‖φ(S k) − v‖² by autograd."""
    outputs = []
    for t in range(x["q"].shape[1]):
        q, k, v, beta, log_alpha = (x[name][:, t] for name in ("q", "k", "v", "beta", "log_alpha"))
        S = log_alpha.exp()[..., None, None] * S
        for l in range(steps):
            answer = PHI[phi](torch.einsum("nhvk,nhk->nhv", S, k))
            loss = 0.5 * (answer - v).square().sum()
            (gradient,) = torch.autograd.grad(loss, S, create_graph=True)
            size = beta[..., l] if beta.ndim == 3 else beta
            S = S - size[..., None, None] * gradient
        outputs.append(scale * torch.einsum("nhvk,nhk->nhv", S, q))
    return torch.stack(outputs, 1), S


@pytest.mark.parametrize("phi", list(PHI))
@pytest.mark.parametrize("steps", [None, 1, 3])
def test_the_solver_is_gradient_descent_with_the_same_outer_gradients(phi: str, steps: int | None) -> None:
    x, S = operands(steps), torch.randn(B, H, V, K, dtype=torch.float64)
    L = steps or 2
    leaves = [y.requires_grad_() for y in (*x.values(), S)]
    results = []
    ours = nonlinear_delta(**x, steps=L, nonlinearity=phi, scale=0.7, initial_state=S, output_final_state=True)
    for o, final in (ours, definition(x, S, L, phi, 0.7)):
        loss = (o * torch.linspace(-1, 1, V)).sum() + final.square().sum()
        results.append([o, final, *torch.autograd.grad(loss, leaves)])
    for ours_i, theirs_i in zip(*results, strict=True):
        torch.testing.assert_close(ours_i, theirs_i, rtol=1e-9, atol=1e-10)


def test_one_step_with_the_identity_is_gated_deltanet_on_unit_keys() -> None:
    x = operands(None)
    x["k"] = F.normalize(x["k"], dim=-1)
    o, S = nonlinear_delta(**x, nonlinearity="identity", output_final_state=True)
    # Eq. delta: α S (I − β k kᵀ) + β v kᵀ
    expected, S_expected = delta_rule(**x, output_final_state=True, backend="reference")
    torch.testing.assert_close(o, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(S, S_expected, rtol=1e-10, atol=1e-10)


def test_a_token_changes_the_state_by_rank_one_however_many_its_steps() -> None:
    x = operands(8, length=1, batch=1)
    S = torch.randn(1, H, V, K, dtype=torch.float64)
    x["log_alpha"] = torch.zeros_like(x["log_alpha"])
    _, after = nonlinear_delta(**x, steps=8, initial_state=S, output_final_state=True)
    assert after is not None
    values = torch.linalg.svdvals(after - S)
    assert (values[..., 0] > 1e-3).all()
    assert (values[..., 1] < 1e-12).all()


def test_more_steps_come_nearer_to_the_value() -> None:
    x = operands(None, length=1)
    x["k"], x["beta"] = F.normalize(x["k"], dim=-1), torch.full_like(x["beta"], 0.5)
    x["v"] = x["v"].abs()  # within gelu's range
    errors = []
    for steps in (1, 4, 16):
        _, S = nonlinear_delta(**x, steps=steps, output_final_state=True)
        answer = F.gelu(torch.einsum("nhvk,nthk->nthv", S, x["k"]))
        errors.append((answer - x["v"]).square().mean().item())
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("steps", [1, 3])
def test_steps_packed_sequences_and_splits_agree_with_the_whole(steps: int) -> None:
    limits = [0, 3, 3, 67, 70]
    x = operands(steps, batch=1)
    o, S = nonlinear_delta(**x, steps=steps, cu_seqlens=torch.tensor(limits), output_final_state=True)
    assert S is not None
    for n, (a, b) in enumerate(pairwise(limits)):
        state = None
        for t in range(a, b):
            token = {name: y[:, t : t + 1] for name, y in x.items()}
            o_t, state = nonlinear_delta(**token, steps=steps, initial_state=state, output_final_state=True)
            torch.testing.assert_close(o[:, t : t + 1], o_t, rtol=1e-10, atol=1e-10)
        expected = torch.zeros_like(S[:1]) if state is None else state
        torch.testing.assert_close(S[n : n + 1], expected, rtol=1e-10, atol=1e-10)
    whole, _ = nonlinear_delta(**x, steps=steps)
    first, state = nonlinear_delta(**{name: y[:, :41] for name, y in x.items()}, steps=steps, output_final_state=True)
    second, _ = nonlinear_delta(**{n: y[:, 41:] for n, y in x.items()}, steps=steps, initial_state=state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-10, atol=1e-10)


def test_half_precision_computes_in_float32_and_no_tokens_change_nothing() -> None:
    x = operands(2)
    exact, _ = nonlinear_delta(**x, steps=2)
    low, S = nonlinear_delta(**{n: y.bfloat16() for n, y in x.items()}, steps=2, output_final_state=True)
    assert (low.dtype, S.dtype) == (torch.bfloat16, torch.float32)
    assert (low.double() - exact).norm() / exact.norm() < 0.05
    none, kept = nonlinear_delta(
        **{n: y[:, :0] for n, y in x.items()}, steps=2, initial_state=S.double(), output_final_state=True
    )
    assert none.shape == (B, 0, H, V)
    assert torch.equal(kept, S.double())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"nonlinearity": "relu"}, "nonlinearity must be one of"),
        ({"steps": 3}, "beta"),
        ({"k": torch.zeros(B, T, H, 2, K, dtype=torch.float64)}, "one key per token"),
    ],
)
def test_bad_arguments_are_refused_by_name(change: dict, says: str) -> None:
    bare = inspect.unwrap(nonlinear_delta)
    with pytest.raises(ValueError, match=says):
        bare(**(operands(2) | {"steps": 2} | change))
