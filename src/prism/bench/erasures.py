"""What erasing along each direction costs beside erasing along one, and beside expanding the sequence L-fold."""

from functools import partial
from math import inf

import torch
from torch import Tensor

from prism.bench.measure import Job, in_turns
from prism.bench.report import Claim
from prism.errors import InputError
from prism.ops import delta_rule

Operands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _first(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_alpha: Tensor) -> Tensor:
    return delta_rule(q, k, v, beta, log_alpha, backend="cpu")[0]


def _each(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_alpha: Tensor) -> Tensor:
    return delta_rule(q, k, v, beta, log_alpha, erase=beta, backend="cpu")[0]


def _expanded(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_alpha: Tensor) -> Tensor:
    """One token for each direction, of which the last is read and the first decays: a rank-1 kernel's way to do it."""
    B, T, H, L, K = k.shape

    def unrolled(x: Tensor) -> Tensor:
        return x.transpose(2, 3).flatten(1, 2)

    still = log_alpha.new_zeros(B, T, L - 1, H)
    decays = torch.cat([log_alpha.unsqueeze(2), still], 2).flatten(1, 2)
    reads = torch.cat([q.new_zeros(B, T, L - 1, H, K), q.unsqueeze(2)], 2).flatten(1, 2)
    o = delta_rule(reads, unrolled(k), unrolled(v), unrolled(beta), decays, backend="cpu")[0]
    return o[:, L - 1 :: L]


FORMS = {"first": _first, "each": _each, "expanded": _expanded}


def _once(form: str, x: Operands) -> None:
    torch.autograd.grad(FORMS[form](*x).sum(), x)


@torch.no_grad()
def check(x: Operands) -> None:
    """Refuses to time forms that do not compute the same."""
    each, expanded = _each(*x), _expanded(*x)
    error = float((each - expanded).norm() / expanded.norm())
    if not error < 1e-4:
        raise InputError(f"erasing along each direction is off by {error:.1e} of expanding, so nothing was timed")


def erasure_claims(x: Operands, repeats: int) -> list[Claim]:
    """The limits of erasing along each direction, forward and backward: the best of each form, taken in turns."""
    check(x)
    T, L = x[1].shape[1], x[1].shape[3]
    jobs: dict[str, Job] = {form: partial(_once, form, x) for form in FORMS}
    best = dict.fromkeys(FORMS, inf)
    for form, seconds in in_turns(jobs, repeats).items():
        best[form] = min(seconds)
    where = f"L={L}, T={T:,}"
    return [
        Claim(text=f"cpu, erasing each / first direction, {where}", measured=best["each"] / best["first"], most=1.6),
        Claim(text=f"cpu, expanding / erasing each, {where}", measured=best["expanded"] / best["each"], least=1.0),
    ]
