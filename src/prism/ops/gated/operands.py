"""The arguments of `gated_rule`, checked once at the door and brought to one form for every backend."""

from typing import Literal, NamedTuple, get_args

from torch import Tensor

from prism.ops.common.checks import check_decay, check_dtype, check_tensor, compute_dtype, describe, start_state
from prism.ops.common.packing import Packing, read_bounds

Side = Literal["key", "value"]


class Gated(NamedTuple):
    """What every backend takes, in one compute dtype."""

    q: Tensor  # [B, T, H, K], or [B, T, H, V] where `side` is value
    k: Tensor  # [B, T, H, K]
    v: Tensor  # [B, T, H, V]
    log_alpha: Tensor  # [B, T, H, K]
    find: Tensor | None  # [B, T, H, K]: f
    erase: Tensor | None  # [B, T, H, K]: e
    S0: Tensor  # [N, H, V, K]
    scale: float
    side: Side
    bounds: tuple[int, ...] | None

    def tokens(self) -> tuple[Tensor, ...]:
        """The operands with a time axis: q, k, v, log α, and f, e where there are any."""
        return tuple(x for x in self[:6] if isinstance(x, Tensor))

    def part(self, first: int, last: int, sequences: slice) -> "Gated":
        """Tokens first, …, last − 1, as one sequence that is not packed."""
        tokens = (None if x is None else x[:, first:last] for x in self[:6])
        return Gated(*tokens, S0=self.S0[sequences], scale=self.scale, side=self.side, bounds=None)  # type: ignore[arg-type, misc]


def gated_operands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_alpha: Tensor,
    find: Tensor | None = None,
    erase: Tensor | None = None,
    *,
    side: str = "key",
    scale: float | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | Packing | None = None,
) -> Gated:
    """Checks the arguments of `gated_rule` and returns them in the one form that the backends take."""
    if side not in get_args(Side):
        raise ValueError(f"side must be key or value, got {side!r}")
    if (find is None) != (erase is None):
        raise ValueError("find and erase go together: give both, or neither")
    if find is not None and side == "value":
        raise ValueError("side 'value' reads a state without erasure: leave out find and erase")
    for name, value in (("q", q), ("k", k), ("v", v)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        if value.ndim != 4:
            raise ValueError(f"{name} must have shape [B, T, H, width], got {describe(value)}")
    if not q.is_floating_point():
        raise ValueError(f"q must be a floating-point tensor, got {q.dtype}")
    B, T, H, _ = q.shape
    K, V, dtype = k.shape[-1], v.shape[-1], compute_dtype(q.dtype)
    check_tensor("q", q, (B, T, H, K if side == "key" else V), "B T H K" if side == "key" else "B T H V", q)
    check_tensor("v", v, (B, T, H, V), "B T H V", q)
    check_tensor("log_alpha", log_alpha, (B, T, H, K), "B T H K", q)
    for name, part in (("k", k), ("find", find), ("erase", erase)):
        if part is not None:
            check_tensor(name, part, (B, T, H, K), "B T H K", q)
            check_dtype(name, part, (q.dtype,), q)
    check_dtype("v", v, (q.dtype,), q)
    check_dtype("log_alpha", log_alpha, (q.dtype, dtype), q)
    check_decay(log_alpha)
    bounds = read_bounds(cu_seqlens, B, T)
    S0 = start_state(initial_state, (B if bounds is None else len(bounds) - 1, H, V, K), q)
    wide = (None if y is None else y.to(dtype) for y in (q, k, v, log_alpha, find, erase))
    return Gated(*wide, S0=S0, scale=1.0 if scale is None else float(scale), side=side, bounds=bounds)  # type: ignore[arg-type, misc]
