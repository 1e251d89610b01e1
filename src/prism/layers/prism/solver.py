"""PRISM's solver: from an anchor u the gains p and directions of L steps that refine r¹ = v − u."""

import torch
from jaxtyping import Float
from torch import Tensor

from prism.layers.prism.fields import PrismFields
from prism.ops.solver import refine


def solver_sizes(config: PrismFields, dim: int, K: int, V: int) -> tuple[dict[str, int], dict[str, int]]:
    """What the solver projects from the anchor, and what it lifts from the part called `low` (empty: full maps)."""
    H, rank = config.heads, config.solver_rank
    maps = {"keys": config.free_keys * H * K, "gain": config.gains * H * V}
    subtracts = config.steps > 0 and config.residual == "subtract"
    anchor = {"anchor": H * V} if subtracts and H * V != dim else {}
    if rank is not None and dim > 2 * rank and sum(maps.values()) > 0:
        return anchor | {"low": rank}, maps
    return anchor | maps, {}


def named(y: Float[Tensor, "*tokens E"], sizes: dict[str, int]) -> dict[str, Tensor]:
    """The parts of a projection."""
    return dict(zip(sizes, y.split(list(sizes.values()), -1), strict=True))


def corrections(
    config: PrismFields,
    v: Float[Tensor, "*tokens H V"],
    u: Float[Tensor, "*tokens D"],
    part: dict[str, Tensor],
    gain_bias: Float[Tensor, "H L V"] | None,
) -> Float[Tensor, "*tokens H L V"]:
    """δ^(1..L), which refine r¹ = v − u with the gains in `part`."""
    H, V = v.shape[-2:]
    r = v
    if config.residual == "subtract":
        r = v - part.get("anchor", u).unflatten(-1, (H, V))
    p = part["gain"].unflatten(-1, (H, config.steps, V)) if config.gains else None
    if p is not None and gain_bias is not None:
        p = p + gain_bias
    return refine(r, p, config.steps, nonlinearity=config.nonlinearity, residual=config.residual)


def repeat_last(k: Float[Tensor, "*tokens H some K"], writes: int) -> Float[Tensor, "*tokens H L K"]:
    """Shared directions: the last one stands for those missing."""
    missing = writes - k.shape[-2]
    return torch.cat([k, k[..., -1:, :].expand(*k.shape[:-2], missing, k.shape[-1])], -2) if missing else k
