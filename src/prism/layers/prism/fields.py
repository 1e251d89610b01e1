"""PRISM's fields: every ablation, and every choice that the paper leaves open; what follows from them."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from prism.config import Count, Natural
from prism.errors import InputError
from prism.layers.base.mixer import HeadSizesConfig
from prism.layers.base.parts import ConvStart
from prism.ops.solver import Nonlinearity, Residual

Keys = Literal["independent", "shared", "base"]
Anchor = Literal["shortconv", "none"]
Gain = Literal["learned", "none"]
Forget = Literal["first", "all", "none"]
Decay = Literal["learned", "none"]
AnchorNorm = Literal["layer", "none"]
Window = Literal["current", "past"]
Strength = Literal["sigmoid", "linear"]
Read = Literal["gated", "plain"]
DecayStart = Literal["half-lives", "zero"]

# Algorithm 1 as it is printed, in the choices that it leaves open as well (docs/paper.md has them one by one).
LITERAL: dict[str, Any] = {
    "anchor_norm": "none",
    "strength": "linear",
    "unit_keys": False,
    "unit_queries": False,
    "gain_bias": False,
    "read": "plain",
    "decay_start": "zero",
    "conv_start": "random",
    "solver_rank": None,
}
# Ours, beyond the paper: erase along every direction that is written along, by up to 2, and write the target alone.
REWRITE: dict[str, Any] = {"forget": "all", "reflect": True, "residual": "state"}
# The same without a decay: for what has to be kept however long the sequence is.
TRACKING: dict[str, Any] = REWRITE | {"decay": "none"}
# Heads in three dimensions whose tokens begin near reflections, two of which are any rotation: for groups of rotations.
ROTATIONS: dict[str, Any] = TRACKING | {
    "anchor": "none",
    "nonlinearity": "identity",
    "strength_bias": 3.0,
    "head_key": 3,
}


@dataclass(frozen=True, kw_only=True)
class PrismFields(HeadSizesConfig):
    """The fields of `PrismConfig`, and what follows from them."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "literal": LITERAL, "rewrite": REWRITE, "tracking": TRACKING, "rotations": ROTATIONS,
    }  # fmt: skip

    steps: Natural = 2
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
    """What is erased: along the first direction, as printed; or along each, just before it is written along (ours);
    or nothing, as in the released code's probes."""
    reflect: bool = False
    """ε = 2β: an erasure that can turn a direction round, down to an eigenvalue of −1, which tracking a state needs."""
    nonlinearity: Nonlinearity = "gelu"
    """φ in δ = φ(p ⊙ r)."""
    gain: Gain = "learned"
    """p from the anchor; or `none`: 1."""
    anchor: Anchor = "shortconv"
    """u from a short convolution; or `none`: from the token alone."""
    conv_size: Count = 5
    """The anchor's window, in tokens."""
    solver_rank: Count | None = 128
    """Rank of the maps to p and to the directions after the erased one; models up to twice as wide, or None: full."""
    anchor_norm: AnchorNorm = "layer"
    """LayerNorm on u, which the paper's appendix on stability relies on; or none, as Algorithm 1 prints it."""
    window: Window = "current"
    """The anchor's window ends with the token itself; or with the one before it, as the paper's appendix on the
    anchor's error has it: no operand then sees the token that it belongs to."""
    strength: Strength = "sigmoid"
    """β = σ(w·u), in [0, 1] as the paper's lemma on the spectrum needs it; or w·u, as printed."""
    strength_bias: float | None = None
    """b in β = σ(w·u + b) at first; None: no b. With `reflect` and b = 3, ε begins at 1.9: near reflections, which keep
    what the state holds, where b = 0 begins with projections, which lose it."""
    unit_keys: bool = True
    """k^l / ‖k^l‖, at most 1 as that lemma needs it; or W_k u, as printed."""
    unit_queries: bool = True
    """q / ‖q‖; or W_q u, as printed."""
    gain_bias: bool = True
    """p = W_p u + b, b = 1 at first; or W_p u, as printed."""
    read: Read = "gated"
    """RMSNorm of each head and a SiLU gate before the output map; or the output map of S q, as printed."""
    decay: Decay = "learned"
    """α = σ(W_α u + b); or none: α = 1."""
    decay_start: DecayStart = "half-lives"
    """b of the decay at first: half-lives spread from 4 to 1,024 tokens over the heads; or 0, which forgets half."""
    conv_start: ConvStart = "identity"
    """Taps of the anchor's convolution at first: near the identity; or all alike, as torch draws them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.residual == "state" and self.forget != "all":
            raise InputError("residual 'state' leaves the subtraction to the erasure: it needs forget = 'all'")
        if self.reflect and self.forget == "none":
            raise InputError("reflect doubles an erasure: it needs forget = 'first' or 'all'")
        if self.window == "past" and self.anchor == "none":
            raise InputError("window 'past' is the convolution's: it needs anchor = 'shortconv'")
        for name in OF_THE_EQUATION if self.base_write else ():
            if getattr(self, name) != getattr(PrismFields, name):
                raise InputError(f"base_write has Gated DeltaNet's own layer around the steps: leave {name} as it is")

    @property
    def writes(self) -> int:
        """Rank-1 terms written per token."""
        return max(1, self.steps + self.base_write)

    @property
    def erasures(self) -> int:
        """Directions erased along per token."""
        return {"none": 0, "first": 1, "all": self.writes}[self.forget]

    def erase(self, beta: Float[Tensor, "*tokens H L"]) -> Tensor | None:
        """ε from the strengths of the writes; None: β of the first direction, as the operator has it by itself."""
        if self.forget == "none":
            return torch.zeros_like(beta[..., 0])
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


# Choices of the layer that is all equation; beside a base write the layer is Gated DeltaNet's.
OF_THE_EQUATION = (
    "anchor_norm", "window", "strength", "strength_bias", "unit_keys", "unit_queries", "gain_bias", "read", "decay",
    "decay_start", "conv_start",
)  # fmt: skip
