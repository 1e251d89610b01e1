"""PRISM: S_t = α_t S_{t-1} (I − β¹ k¹ k¹ᵀ) + Σ_l β^l δ^l k^lᵀ, every operand from an anchor u_t of the input alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.config import at_least, one_of
from prism.layers.base.memory import Memory, Pace, Write
from prism.layers.base.mixer import MixerConfig, State
from prism.layers.base.parts import GatedRead, ShortConv, half_lives, unit, wide
from prism.ops.delta.rule import delta_rule_flops
from prism.ops.solver import Nonlinearity, Residual, refine

Keys = Literal["independent", "shared", "base"]
Anchor = Literal["shortconv", "none"]
Gain = Literal["learned", "none"]


@dataclass(frozen=True, kw_only=True)
class PrismConfig(MixerConfig):
    """PRISM and its ablations: each is one field."""

    steps: int = 2
    """L, refinement steps a token and the rank of its write; 0 is Gated DeltaNet's write β v kᵀ."""
    base_write: bool = False
    """A Gated DeltaNet layer and beside its write L solver steps (rank L+1): the paper's language models. Only the
    steps' gains, directions and strengths and the anchor in r¹ come from u; the rest is Gated DeltaNet's, from x."""
    keys: Keys = "independent"
    """One direction a step; or all steps share the first; or all reuse the erased key."""
    residual: Residual = "subtract"
    """r¹ = v − u, less what each step wrote; or `none`: every step sees v."""
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
        one_of("anchor", self.anchor, Anchor)

    def _make(self, dim: int) -> Memory:
        if self.base_write:
            from prism.layers.prism_base import PrismOnBase  # which needs this config

            return PrismOnBase(dim, self)
        return Prism(dim, self)

    @property
    def writes(self) -> int:
        """Rank-1 terms written a token."""
        return max(1, self.steps + self.base_write)

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


def solver_sizes(config: PrismConfig, dim: int, K: int, V: int) -> tuple[dict[str, int], dict[str, int]]:
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
    config: PrismConfig,
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


class Prism(Memory):
    """PRISM (Algorithm 1): Gated DeltaNet's forgetting, a write of rank L from L refinement steps."""

    Config = PrismConfig

    def __init__(self, dim: int, config: PrismConfig):
        super().__init__(dim)
        self.config, H = config, config.heads
        self.K = K = config.head_size(dim, config.head_key, "head_key")
        self.V = V = config.head_size(dim, config.head_value, "head_value")
        self.conv = ShortConv(dim, config.conv_size) if config.anchor == "shortconv" else None
        self.norm = nn.LayerNorm(dim)
        own, self.lifted = solver_sizes(config, dim, K, V)
        self.sizes = {"q": H * K, "k": H * K, "v": H * V, "gate": H * V, "beta": config.writes * H, "decay": H} | own
        self.project = nn.Linear(dim, sum(self.sizes.values()), bias=False)
        self.solver = nn.Linear(own["low"], sum(self.lifted.values()), bias=False) if self.lifted else None
        self.decay_bias = nn.Parameter(half_lives(H))
        # the gain starts at 1 (φ' of an identity), so that every step writes from the first update on
        self.gain_bias = nn.Parameter(torch.ones(H, config.gains, V)) if config.gains else None
        self.read = GatedRead(V)
        self.out = nn.Linear(H * V, dim, bias=False)

    def recall(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace, project: Callable[[Tensor], Tensor]
    ) -> tuple[Float[Tensor, "*tokens H V"], Float[Tensor, "*tokens HV"], State]:
        """Anchor, refine, one parallel recurrence."""
        history, S = self._open(state)
        u = x
        if self.conv is not None:
            u, history = pace.conv(self.conv, x, history)
        write, gate = self.write(self.norm(u), project)
        o, S = pace.delta_rule(write, S)
        return o, gate, self._close(history, S)

    def write(
        self, u: Float[Tensor, "*tokens D"], project: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Write, Float[Tensor, "*tokens HV"]]:
        """Everything that follows from the anchor: the operands of the recurrence, and the gate of its read."""
        config, H = self.config, self.config.heads
        part = named(self.project(u) if project is None else project(u), self.sizes)
        if self.solver is not None:
            part |= named(self.solver(part["low"]), self.lifted)

        def heads(name: str, *shape: int) -> Tensor:
            return part[name].unflatten(-1, (H, *shape))

        v = heads("v", self.V)
        delta = corrections(config, v, u, part, self.gain_bias) if config.steps else v.unsqueeze(-2)
        write = Write(
            q=unit(heads("q", self.K)),
            k=self._directions(part),
            v=delta.to(part["q"].dtype),  # under autocast the anchor and the gain's bias are float32
            beta=heads("beta", config.writes).sigmoid(),
            log_alpha=F.logsigmoid(wide(part["decay"]) + wide(self.decay_bias)),
        )
        return write, part["gate"]

    def _directions(self, part: dict[str, Tensor]) -> Float[Tensor, "*tokens H L K"]:
        """k^(1..L), the erased one first."""
        config = self.config
        k = part["k"].unflatten(-1, (config.heads, 1, self.K))
        if config.free_keys:
            k = torch.cat([k, part["keys"].unflatten(-1, (config.heads, config.free_keys, self.K))], -2)
        return repeat_last(unit(k), config.writes)

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The anchor's last inputs, and S."""
        S = (self.config.heads, self.V, self.K)
        return (S,) if self.conv is None else (self.conv.state_shape(), S)

    def state_flops(self, length: int) -> int:
        """Decay, erase, L writes and the read of each head."""
        return self.config.heads * delta_rule_flops(self.config.writes, self.K, self.V)

    def _open(self, state: State | None) -> tuple[Tensor | None, Tensor | None]:
        if state is None:
            return None, None
        return (None, state[0]) if self.conv is None else (state[0], state[1])

    def _close(self, history: Tensor | None, S: Tensor | None) -> State:
        return tuple(part for part in (history, S) if part is not None)
