"""PRISM: S_t = α_t S_{t-1} (I − β¹ k¹ k¹ᵀ) + Σ_l β^l δ^l k^lᵀ, every operand from an anchor u_t of the input alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from prism.config import at_least, one_of
from prism.layers.memory import Memory, Pace, Write
from prism.layers.mixer import MixerConfig, State
from prism.layers.parts import GatedRead, ShortConv, half_lives, unit, wide
from prism.ops.delta import delta_rule_flops
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
    """Write β v kᵀ along the erased key first and refine after it (rank L+1): the second reading of the paper."""
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

    def _make(self, dim: int) -> "Prism":
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
        subtract = config.steps > 0 and config.residual == "subtract"
        gains = config.steps if config.gain == "learned" else 0
        solver = {"keys": config.free_keys * H * K, "gain": gains * H * V}
        sizes = {"q": H * K, "k": H * K, "v": H * V, "gate": H * V, "beta": config.writes * H, "decay": H}
        if subtract and H * V != dim:
            sizes["anchor"] = H * V
        rank = config.solver_rank
        low = rank is not None and dim > 2 * rank and sum(solver.values()) > 0
        sizes |= {"low": rank or 0} if low else solver
        self.sizes, self.solver_sizes, self.subtract = sizes, solver, subtract
        self.project = nn.Linear(dim, sum(sizes.values()), bias=False)
        self.solver = nn.Linear(rank or 0, sum(solver.values()), bias=False) if low else None
        self.decay_bias = nn.Parameter(half_lives(H))
        # the gain starts at 1 (φ' of an identity), so that every step writes from the first update on
        self.gain_bias = nn.Parameter(torch.ones(H, gains, V)) if gains else None
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
        projected = self.project(u) if project is None else project(u)
        part = dict(zip(self.sizes, projected.split(list(self.sizes.values()), -1), strict=True))
        if self.solver is not None:
            low = self.solver(part["low"]).split(list(self.solver_sizes.values()), -1)
            part |= dict(zip(self.solver_sizes, low, strict=True))

        def heads(name: str, *shape: int) -> Tensor:
            return part[name].unflatten(-1, (H, *shape))

        v = heads("v", self.V)
        r = v
        if self.subtract:
            r = v - (heads("anchor", self.V) if "anchor" in part else u.unflatten(-1, (H, self.V)))
        p = None
        if self.gain_bias is not None:
            p = heads("gain", config.steps, self.V) + self.gain_bias
        delta = v.unsqueeze(-2)
        if config.steps:
            refined = refine(r, p, config.steps, nonlinearity=config.nonlinearity, residual=config.residual)
            delta = torch.cat([delta, refined], -2) if config.base_write else refined
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
        k = unit(k)
        missing = config.writes - 1 - config.free_keys
        if missing:  # shared directions: the last one stands for the rest
            k = torch.cat([k, k[..., -1:, :].expand(*k.shape[:-2], missing, self.K)], -2)
        return k

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
