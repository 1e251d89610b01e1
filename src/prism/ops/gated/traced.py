"""The recurrence with a decay per channel as one node of a traced graph."""

from torch import Tensor

from prism.ops.common.backends import pick
from prism.ops.common.traced import one_node
from prism.ops.gated.definition import MODULES, reference
from prism.ops.gated.operands import Gated


def _run(tensors: list[Tensor], scale: float, side: str, bounds: list[int] | None) -> tuple[Tensor, Tensor]:
    q, k, v, log_alpha, *erasure, S0 = tensors
    find, erase = erasure if erasure else (None, None)
    limits = None if bounds is None else tuple(bounds)
    x = Gated(q, k, v, log_alpha, find, erase, S0, scale, side, limits)  # type: ignore[arg-type]
    return pick("auto", x, reference, MODULES, autocast=False)(x)


_node = one_node("gated_rule", _run)


def forward(x: Gated) -> tuple[Tensor, Tensor]:
    """The outputs and the final states, as an opaque operation."""
    return _node([*x.tokens(), x.S0], x.scale, x.side, None if x.bounds is None else list(x.bounds))
