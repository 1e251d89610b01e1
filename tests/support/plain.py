"""Pieces of one-token definitions, plain on purpose: what tests compare the mixers with shares no code with them."""

import torch
from torch import Tensor


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """u_t = Σ_j w_{W-1-j} x_{t-j} of one sequence [T, D], a channel at a time."""
    T, W = len(x), weight.shape[1]
    rows = []
    for t in range(T):
        rows.append(sum(weight[:, W - 1 - j] * x[t - j] for j in range(min(W, t + 1))))
    return torch.stack(rows)


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))


def unit(x: Tensor) -> Tensor:
    return x / x.square().sum().sqrt()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / (x.square().mean() + eps).sqrt()


def layer_norm(x: Tensor, eps: float, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Tensor:
    centred = x - x.mean()
    return weight * centred / (centred.square().mean() + eps).sqrt() + bias


def mamba_decay(logit: Tensor, log_rate: Tensor, bias: Tensor) -> Tensor:
    """α = exp(−e^A softplus(x + b))."""
    return torch.exp(-torch.exp(log_rate) * softplus(logit + bias))


def inputs(length: int, dim: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, length, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def randomise(module: torch.nn.Module) -> torch.nn.Module:
    """Moves every parameter off its initial value, so that a forgotten scale or bias shows."""
    generator = torch.Generator().manual_seed(4)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    return module


def assert_matches(mixer: torch.nn.Module, definition, x: Tensor, tolerance: float = 1e-10) -> None:
    """Outputs, and the gradients of the input and of every parameter, equal those of `definition(mixer, x[0])`."""
    wanted = {"x": x.clone().requires_grad_()} | dict(mixer.named_parameters())
    weights = torch.randn(x.shape[1:], dtype=x.dtype, generator=torch.Generator().manual_seed(5))
    ours, theirs = mixer(wanted["x"])[0][0], definition(mixer, wanted["x"][0])
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    grads = [torch.autograd.grad((y * weights).sum(), list(wanted.values()), allow_unused=True) for y in (ours, theirs)]
    for name, a, b in zip(wanted, *grads, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9, msg=lambda m, n=name: f"gradient of {n}: {m}")
