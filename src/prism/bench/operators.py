"""The operators that are timed side by side, and a check that none of them is wrong."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from prism.bench.measure import Job
from prism.errors import InputError
from prism.ops import delta_rule

System = Literal["cpu", "chunk", "reference", "attention", "transformers"]
REFERENCE_UP_TO = 1024  # the loop over tokens is far slower than all others: longer, it would be all one waits for


@dataclass(frozen=True)
class Size:
    """One problem: the shape of the operands."""

    B: int
    T: int
    H: int
    L: int
    D: int  # K = V

    def operands(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """q, k, v, beta, log_alpha: unit keys, gates over their range, a decay of a few percent."""
        g = torch.Generator().manual_seed(0)
        q = F.normalize(torch.randn(self.B, self.T, self.H, self.D, generator=g), dim=-1)
        k = F.normalize(torch.randn(self.B, self.T, self.H, self.L, self.D, generator=g), dim=-1)
        v = torch.randn(self.B, self.T, self.H, self.L, self.D, generator=g)
        beta = torch.rand(self.B, self.T, self.H, self.L, generator=g)
        log_alpha = -0.1 * torch.rand(self.B, self.T, self.H, generator=g)
        return [x.to(dtype).requires_grad_() for x in (q, k, v, beta, log_alpha)]


def ours(backend: str, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_alpha: Tensor) -> Tensor:
    return delta_rule(q, k, v, beta, log_alpha, backend=backend)[0]  # type: ignore[arg-type]


def causal_attention(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_alpha: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k[..., 0, :], v[..., 0, :]))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def _transformers(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_alpha: Tensor) -> Tensor:
    """The CPU fallback for Gated DeltaNet that ships in transformers (rank 1, scale 1/√K undone)."""
    from transformers import logging
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    logging.set_verbosity_error()  # it says at every call that a GPU library would be faster
    scale = q.shape[-1] ** 0.5
    return scale * torch_chunk_gated_delta_rule(q, k[..., 0, :], v[..., 0, :], log_alpha, beta[..., 0])[0]


def _function(system: str) -> Callable[..., Tensor]:
    if system == "attention":
        return causal_attention
    return _transformers if system == "transformers" else partial(ours, system)


def label(system: str, L: int) -> str:
    """What the table calls it."""
    names = {"attention": "PyTorch causal attention", "transformers": "transformers fallback, L=1"}
    return names.get(system, f"prism {system}, L={L}")


def _runs(system: str, size: Size) -> bool:
    if system in ("attention", "transformers"):
        return size.L == 1  # they have no rank to choose
    return system != "reference" or size.T <= REFERENCE_UP_TO


def jobs(systems: tuple[str, ...], sizes: list[Size], backward: bool) -> dict[str, Job]:
    made: dict[str, Job] = {}
    for size in sizes:
        x = size.operands()
        for system in systems:
            if _runs(system, size):
                made[label(system, size.L)] = partial(once, _function(system), x, backward)
    return made


def once(function: Callable[..., Tensor], x: list[Tensor], backward: bool) -> None:
    """Forward alone, or with the gradients of all operands."""
    if backward:
        torch.autograd.grad(function(*x).float().sum(), x, allow_unused=True)
        return
    with torch.no_grad():
        function(*x)


def check(systems: tuple[str, ...], L: int) -> None:
    """Refuses to time what is wrong: values and gradients in float32 against the float64 definition."""
    size = Size(B=2, T=200, H=2, L=L, D=32)
    x, exact = size.operands(), size.operands(torch.float64)
    for system in systems:
        if not _runs(system, size):
            continue
        truth = _softmax_attention if system == "attention" else partial(ours, "reference")
        got = _with_gradients(_function(system), x)
        want = _with_gradients(truth, exact)
        for name, a, b in zip(("output", "dq", "dk", "dv", "dbeta", "dlog_alpha"), got, want, strict=True):
            error = float((a - b).norm() / b.norm().clamp_min(1e-30))
            if not error < 1e-4:
                raise InputError(
                    f"{label(system, L)} is wrong, so nothing was timed: {name} is off by {error:.1e} of its size; "
                    "run the tests of prism.ops, or leave it out with --systems"
                )


def _with_gradients(function: Callable[..., Tensor], x: list[Tensor]) -> list[Tensor]:
    y = function(*x)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    grads = torch.autograd.grad((y * weight).sum(), x, allow_unused=True, materialize_grads=True)
    return [t.detach().double() for t in (y, *grads)]


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_alpha: Tensor) -> Tensor:
    scores = torch.einsum("bthk,bshk->bhts", q, k[..., 0, :]) / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.einsum("bhts,bshv->bthv", scores.masked_fill(future, -torch.inf).softmax(-1), v[..., 0, :])


def available(systems: tuple[str, ...]) -> tuple[str, ...]:
    """The systems that this machine has, one line for each that it has not."""
    found = []
    for system in systems:
        try:
            if system == "transformers":
                import transformers.models.qwen3_next.modeling_qwen3_next  # noqa: F401
            elif system == "cpu":
                import numba  # noqa: F401
        except ImportError as error:
            warnings.warn(f"{system} is left out: {error}; pip install 'prism-sequence[lm]'", stacklevel=2)
            continue
        found.append(system)
    return tuple(found)
