"""Autocast stops at the operators' door, forwards and backwards; second derivatives and torch.func are refused."""

import inspect
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from support.recurrence import draw

from prism.ops import delta_rule, gated_rule
from prism.ops.common import precision
from prism.ops.fastweight.nonlinear_delta import nonlinear_delta

NAMES = ("q", "k", "v", "beta", "log_alpha")


def operands(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    case = draw(2, 70, 2, 2, 16, 16).to(dtype)
    return {name: getattr(case, name).detach().requires_grad_() for name in NAMES}


@pytest.mark.parametrize("by_name", [False, True])
def test_the_device_of_autocast_is_found_however_operands_are_given(by_name: bool, monkeypatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(precision, "autocasts", lambda device: bool(asked.append(device)))
    x = {name: y.detach().to("meta") for name, y in operands().items()}
    bare = inspect.unwrap(delta_rule)
    o, _ = bare(**x, backend="reference") if by_name else bare(*x.values(), backend="reference")
    assert o.device.type == "meta"
    assert set(asked) == {"meta"}


def test_autocast_of_the_tensors_own_device_is_what_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers call by name, and autocast is on for a GPU alone: meta tensors stand for its own."""
    switched: list[tuple[str, bool]] = []

    def autocast(device: str, enabled: bool) -> AbstractContextManager[None]:
        switched.append((device, enabled))
        return nullcontext()

    monkeypatch.setattr(precision, "autocasts", lambda device: device == "meta")
    monkeypatch.setattr(torch, "autocast", autocast)
    x = {name: y.detach().to("meta") for name, y in operands().items()}
    inspect.unwrap(delta_rule)(**x, backend="chunk")
    q, gates = x["q"], torch.empty_like(x["q"])
    inspect.unwrap(gated_rule)(q=q, k=q, v=q, log_alpha=gates, backend="chunk")
    assert switched
    assert set(switched) == {("meta", False)}


@pytest.mark.parametrize("backend", ["reference", "chunk", "cpu"])
def test_inside_autocast_values_gradients_and_state_are_those_outside(backend: str) -> None:
    x, found = operands(), []
    for inside in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            o, S = delta_rule(**x, output_final_state=True, backend=backend)
            loss = o.square().sum() + S.square().sum()
            found.append((o, S, *torch.autograd.grad(loss, list(x.values()))))
    assert found[1][1].dtype == torch.float32
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)


def scalar(x: dict[str, torch.Tensor], backend: str) -> torch.Tensor:
    return delta_rule(**x, backend=backend)[0].square().sum()


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("backend", ["chunk", "cpu"])
def test_a_second_derivative_is_refused_by_name(backend: str, linear: bool) -> None:
    x = operands(torch.float64)
    loss = delta_rule(**x, backend=backend)[0].sum() if linear else scalar(x, backend)
    (first,) = torch.autograd.grad(loss, x["k"], create_graph=True)
    with pytest.raises(NotImplementedError, match="cannot be differentiated again: use backend='reference'"):
        torch.autograd.grad(first.square().sum(), x["v"])


def test_the_definition_can_be_differentiated_twice_and_by_torch_func() -> None:
    x = operands(torch.float64)
    (first,) = torch.autograd.grad(scalar(x, "reference"), x["k"], create_graph=True)
    assert torch.autograd.grad(first.square().sum(), x["v"])[0].isfinite().all()
    again = torch.func.grad(lambda k: scalar(x | {"k": k}, "reference"))(x["k"].detach())
    torch.testing.assert_close(again, first)


@pytest.mark.parametrize("backend", ["auto", "chunk", "cpu"])
def test_torch_func_is_refused_by_name(backend: str) -> None:
    x = {name: y.detach() for name, y in operands().items()}
    with pytest.raises(NotImplementedError, match=r"does not support torch\.func: use backend='reference'"):
        torch.func.grad(lambda k: scalar(x | {"k": k}, backend))(x["k"])
    gates = -torch.rand_like(x["q"])
    with pytest.raises(NotImplementedError, match=r"torch\.func"):
        torch.func.grad(lambda q: gated_rule(q, q, q, gates, backend=backend)[0].sum())(x["q"])


def test_the_serial_solver_refuses_a_second_derivative_too() -> None:
    x = operands(torch.float64)
    x |= {"k": x["k"][:, :, :, 0], "v": x["v"][:, :, :, 0], "beta": x["beta"][..., 0]}
    (first,) = torch.autograd.grad(nonlinear_delta(**x)[0].square().sum(), x["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match="cannot be differentiated again"):
        torch.autograd.grad(first.square().sum(), x["v"])
