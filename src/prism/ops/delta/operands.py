"""The arguments of the recurrence, checked once at the door and brought to one form for every backend."""

from typing import NamedTuple

from torch import Tensor

from prism.ops.common.checks import check_decay, check_dtype, check_tensor, compute_dtype, describe, start_state
from prism.ops.common.packing import Packing, read_bounds


class Operands(NamedTuple):
    """What every backend takes: the L axis always there, decay and erasure always given, one compute dtype."""

    q: Tensor  # [B, T, H, K]
    k: Tensor  # [B, T, H, L, K]
    v: Tensor  # [B, T, H, L, V], the δ of the paper
    beta: Tensor  # [B, T, H, L]
    log_alpha: Tensor  # [B, T, H]
    erase: Tensor  # [B, T, H], along the first direction; or [B, T, H, L], along each
    S0: Tensor  # [N, H, V, K]
    scale: float
    bounds: tuple[int, ...] | None  # where packed sequences begin and end; None: one sequence per batch row

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """B, T, H, L, K, V."""
        B, T, H, L, K = self.k.shape
        return B, T, H, L, K, self.v.shape[-1]

    def part(self, first: int, last: int, sequences: slice) -> "Operands":
        """Tokens first, …, last − 1, as one sequence that is not packed."""
        tokens = (y[:, first:last] for y in self[:6])
        return Operands(*tokens, S0=self.S0[sequences], scale=self.scale, bounds=None)  # type: ignore[arg-type, misc]


def operands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_alpha: Tensor | None = None,
    *,
    erase: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | Packing | None = None,
    widen: bool = True,
) -> Operands:
    """Checks the arguments of `delta_rule` and returns them in the one form that the backends take.

    Without `widen` the tokens keep their dtype: kernels that widen in registers need no copy. States never do.
    """
    k, v, beta = _with_step_axis(q, k, v, beta)
    B, T, H, L, K, V = *k.shape, v.shape[-1]
    dtype = compute_dtype(q.dtype)
    each = isinstance(erase, Tensor) and erase.ndim == 4
    for name, gate in (("log_alpha", log_alpha), ("erase", erase)):
        if gate is not None:
            axes = (B, T, H, L) if each and name == "erase" else (B, T, H)
            check_tensor(name, gate, axes, "B T H L"[: 2 * len(axes) - 1], q)
            check_dtype(name, gate, (q.dtype, dtype), q)
    if erase is not None and each and L == 1:
        erase = erase.squeeze(-1)  # the same thing
    if log_alpha is not None:
        check_decay(log_alpha)
    bounds = read_bounds(cu_seqlens, B, T)
    given = {"q": q, "k": k, "v": v, "beta": beta, "erase": beta[..., 0] if erase is None else erase}
    given["log_alpha"] = q.new_zeros(B, T, H, dtype=dtype) if log_alpha is None else log_alpha
    return Operands(
        **({name: y.to(dtype) for name, y in given.items()} if widen else given),
        S0=start_state(initial_state, (B if bounds is None else len(bounds) - 1, H, V, K), q),
        scale=1.0 if scale is None else float(scale),
        bounds=bounds,
    )


def _with_step_axis(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """k, v and beta with their L axis, one of rank 1 written without it too; refused where they do not fit q."""
    for name, value in (("q", q), ("k", k), ("v", v), ("beta", beta)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if q.ndim != 4:
        raise ValueError(f"q must have shape [B, T, H, K], got {describe(q)}")
    if not q.is_floating_point():
        raise ValueError(f"q must be a floating-point tensor, got {q.dtype}")
    if k.ndim == 4:
        if v.ndim != 4 or beta.ndim != 3:
            raise ValueError(
                f"k {describe(k)} has no L axis, so v must be [B, T, H, V] and beta [B, T, H]; "
                f"got v {describe(v)} and beta {describe(beta)}"
            )
        k, v, beta = k.unsqueeze(3), v.unsqueeze(3), beta.unsqueeze(3)
    if k.ndim != 5:
        raise ValueError(f"k must have shape [B, T, H, L, K] or [B, T, H, K], got {describe(k)}")
    (B, T, H, K), L = q.shape, k.shape[3]
    if L < 1:
        raise ValueError(f"k needs at least one direction per token, got L = {L}")
    if v.ndim != 5:
        raise ValueError(f"v must have shape [B, T, H, L, V] like k's, got {describe(v)}")
    check_tensor("k", k, (B, T, H, L, K), "B T H L K", q)
    check_tensor("v", v, (B, T, H, L, v.shape[-1]), "B T H L V", q)
    check_tensor("beta", beta, (B, T, H, L), "B T H L", q)
    for name, value in (("k", k), ("v", v), ("beta", beta)):
        check_dtype(name, value, (q.dtype,), q)
    return k, v, beta
