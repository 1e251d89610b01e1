"""Operands for the recurrence, drawn or extreme, and the comparison of two backends in values and all gradients."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from prism.ops import delta_rule

NAMES = ("q", "k", "v", "beta", "log_alpha", "erase", "initial_state")


@dataclass(frozen=True)
class Case:
    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    log_alpha: Tensor
    erase: Tensor
    initial_state: Tensor
    cu_seqlens: Tensor | None = None
    scale: float = 0.7

    def tensors(self) -> list[Tensor]:
        return [getattr(self, name) for name in NAMES]

    def to(self, dtype: torch.dtype) -> "Case":
        return replace(self, **{name: getattr(self, name).detach().to(dtype) for name in NAMES})


def draw(
    B: int,
    T: int,
    H: int,
    L: int,
    K: int,
    V: int,
    *,
    limits: list[int] | None = None,
    seed: int = 0,
    each: bool = False,
) -> Case:
    """Unit keys, gates over their whole range, a random state to start from; `each`: every direction erases, ε ≤ 2."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.float64, generator=g)

    N = B if limits is None else len(limits) - 1
    return Case(
        q=F.normalize(normal(B, T, H, K), dim=-1),
        k=F.normalize(normal(B, T, H, L, K), dim=-1),
        v=normal(B, T, H, L, V),
        beta=uniform(B, T, H, L),
        log_alpha=-0.3 * uniform(B, T, H),
        erase=2 * uniform(B, T, H, L) if each else uniform(B, T, H),
        initial_state=normal(N, H, V, K),
        cu_seqlens=None if limits is None else torch.tensor(limits),
    )


def _spread_decays(c: Case, lowest: float) -> Case:
    g = torch.Generator().manual_seed(7)
    u = torch.rand(c.log_alpha.shape, dtype=torch.float64, generator=g)
    return replace(c, log_alpha=u * torch.tensor(lowest, dtype=torch.float64).log())


def _nearly_collinear(c: Case) -> Case:
    k = c.k[:, :1, :, :1].expand_as(c.k) + 1e-4 * c.k
    return replace(c, k=F.normalize(k, dim=-1), beta=torch.ones_like(c.beta), erase=torch.ones_like(c.erase))


EXTREMES = {
    "decays from 1e-6 to 1": lambda c: _spread_decays(c, 1e-6),
    "no decay": lambda c: replace(c, log_alpha=torch.zeros_like(c.log_alpha)),
    "all but forgotten": lambda c: replace(c, log_alpha=torch.full_like(c.log_alpha, -13.8)),
    "gates at 0": lambda c: replace(c, beta=torch.zeros_like(c.beta), erase=torch.zeros_like(c.erase)),
    "erasure at 2": lambda c: replace(c, erase=torch.full_like(c.erase, 2.0), log_alpha=torch.zeros_like(c.log_alpha)),
    "gates at 1": lambda c: replace(c, beta=torch.ones_like(c.beta), erase=torch.ones_like(c.erase)),
    "no erasure": lambda c: replace(c, erase=torch.zeros_like(c.erase)),
    "one key repeated": lambda c: replace(c, k=c.k[:, :1, :, :1].expand_as(c.k).clone()),
    "nearly collinear keys": _nearly_collinear,
    "keys of zero": lambda c: replace(c, k=torch.zeros_like(c.k)),
}


def run(case: Case, backend: str) -> dict[str, Tensor]:
    """Both outputs and the gradient of every operand, for fixed random weights on the outputs."""
    leaves = [x.detach().clone().requires_grad_() for x in case.tensors()]
    q, k, v, beta, log_alpha, erase, S = leaves
    o, last = delta_rule(
        q,
        k,
        v,
        beta,
        log_alpha,
        erase=erase,
        scale=case.scale,
        initial_state=S,
        output_final_state=True,
        cu_seqlens=case.cu_seqlens,
        backend=backend,
    )
    g = torch.Generator().manual_seed(3)
    loss = sum((y.double() * torch.randn(y.shape, dtype=torch.float64, generator=g)).sum() for y in (o, last))
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return {"o": o.detach(), "final_state": last.detach()} | {f"d{n}": x for n, x in zip(NAMES, grads, strict=True)}


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor], values: float, gradients: float) -> None:
    """Every entry within its tolerance, relative to the largest entry of the tensor it belongs to."""
    for name, expected in want.items():
        assert got[name].shape == expected.shape, name
        if not expected.numel():
            continue
        assert torch.isfinite(expected).all(), f"the definition itself is not finite in {name}"
        error = (got[name].double() - expected.double()).abs().max() / expected.abs().max().clamp_min(1e-12)
        assert error <= (gradients if name.startswith("d") else values), f"{name}: {float(error):.2e}"


def error_ratio(got: Tensor, want: Tensor) -> float:
    """RMS of the error over RMS of what is right."""
    got, want = got.detach(), want.detach().double()
    return float((got.double() - want).square().mean().sqrt() / want.square().mean().sqrt().clamp_min(1e-30))
