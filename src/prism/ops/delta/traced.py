"""The recurrence as one node of a traced graph."""

from torch import Tensor

from prism.ops.common.backends import pick
from prism.ops.common.traced import one_node
from prism.ops.delta.definition import MODULES, reference
from prism.ops.delta.operands import Operands


def _run(tensors: list[Tensor], scale: float, side: str, bounds: list[int] | None) -> tuple[Tensor, Tensor]:
    q, k, v, beta, log_alpha, erase, S0 = tensors
    x = Operands(q, k, v, beta, log_alpha, erase, S0, scale, None if bounds is None else tuple(bounds))
    return pick("auto", x, reference, MODULES, autocast=False)(x)


_node = one_node("delta_rule", _run)


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The outputs and the final states, as an opaque operation."""
    *tensors, scale, bounds = x
    return _node(tensors, scale, "key", None if bounds is None else list(bounds))
