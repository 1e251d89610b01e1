"""PRISM's fields, and its solver: from an anchor u the gains p and directions of L steps that refine r¹ = v − u."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from prism.config import at_least, one_of
from prism.errors import InputError
from prism.layers.base.mixer import MixerConfig
from prism.ops.solver import Nonlinearity, Residual, refine

Keys = Literal["independent", "shared", "base"]
Anchor = Literal["shortconv", "none"]
Gain = Literal["learned", "none"]
Forget = Literal["first", "all"]


@dataclass(frozen=True, kw_only=True)
class PrismFields(MixerConfig):
    """The fields of `PrismConfig`, and what follows from them."""

    steps: int = 2
    """L, refinement steps per token and the rank of its write; 0 is Gated DeltaNet's write β v kᵀ."""
    base_write: bool = False
    """A Gated DeltaNet layer and beside its write L solver steps (rank L+1): the paper's language models. Only the
    steps' gains, directions and strengths and the anchor in r¹ come from u; the rest is Gated DeltaNet's, from x."""
    keys: Keys = "independent"
    """One direction per step; or all steps share the first; or all reuse the erased key."""
    residual: Residual = "subtract"
    """r¹ = v − u, less what each step wrote; or `none`: every step sees v; or `state`: every step sees v, and what the
    state holds of it already is subtracted exactly, by the erasure along the step's own direction (forget = all)."""
    forget: Forget = "first"
    """What is erased: along the first direction, as printed; or along each, just before it is written along (ours)."""
    reflect: bool = False
    """ε = 2β: an erasure that can turn a direction round, down to an eigenvalue of −1, which tracking a state needs."""
    nonlinearity: Nonlinearity = "gelu"
    """φ in δ = φ(p ⊙ r)."""
    gain: Gain = "learned"
    """p from the anchor; or `none`: 1."""
    anchor: Anchor = "shortconv"
    """u from a short convolution; or `none`: from the token alone."""
    conv_size: int = 5
    """The anchor's window, in tokens."""
    solver_rank: int | None = 128
    """Rank of the maps to p and to the directions after the erased one; models up to twice as wide, or None: full."""
    head_key: int | None = None
    """Width K of a head's keys; None: dim / heads."""
    head_value: int | None = None
    """Width V of a head's values; None: dim / heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("steps", self.steps, 0)
        at_least("conv_size", self.conv_size, 1)
        for name in ("solver_rank", "head_key", "head_value"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)
        for name, choices in (("keys", Keys), ("residual", Residual), ("nonlinearity", Nonlinearity)):
            one_of(name, getattr(self, name), choices)
        one_of("gain", self.gain, Gain)
        one_of("forget", self.forget, Forget)
        if self.residual == "state" and self.forget != "all":
            raise InputError("residual 'state' leaves the subtraction to the erasure: it needs forget = 'all'")
        one_of("anchor", self.anchor, Anchor)

    @property
    def writes(self) -> int:
        """Rank-1 terms written per token."""
        return max(1, self.steps + self.base_write)

    @property
    def erasures(self) -> int:
        """Directions erased along per token."""
        return self.writes if self.forget == "all" else 1

    def erase(self, beta: Float[Tensor, "*tokens H L"]) -> Tensor | None:
        """ε from the strengths of the writes; None: β of the first direction, as the operator has it by itself."""
        strength = 2 * beta if self.reflect else beta
        if self.forget == "all":
            return strength
        return strength[..., 0] if self.reflect else None

    @property
    def free_keys(self) -> int:
        """Directions a token has beside the erased one."""
        if self.keys == "independent":
            return self.writes - 1
        return int(self.keys == "shared" and self.base_write and self.steps > 0)

    @property
    def gains(self) -> int:
        """Steps with a learned gain."""
        return self.steps if self.gain == "learned" else 0


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
    p = None
    if gain_bias is not None:
        p = part["gain"].unflatten(-1, (H, config.steps, V)) + gain_bias
    return refine(r, p, config.steps, nonlinearity=config.nonlinearity, residual=config.residual)


def repeat_last(k: Float[Tensor, "*tokens H some K"], writes: int) -> Float[Tensor, "*tokens H L K"]:
    """Shared directions: the last one stands for those missing."""
    missing = writes - k.shape[-2]
    return torch.cat([k, k[..., -1:, :].expand(*k.shape[:-2], missing, k.shape[-1])], -2) if missing else k
