"""The contract of a mixer: Config → build(dim); forward for sequences, step for one token; state in and out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.config import Checked, Count, at_least
from prism.errors import InputError
from prism.layers.base.initial import initialise
from prism.layers.base.pace import OneToken, Pace, Segments, Sequences
from prism.ops.common.checks import describe
from prism.ops.common.packing import Limits, Packing
from prism.ops.common.precision import autocasts
from prism.ops.context.segment import Segment
from prism.ops.cpu.threads import warn_if_forked

# One tensor for each thing a mixer remembers; the first axis of each is the sequence.
State = tuple[Tensor, ...]
# In a state's shape, the axis that has one entry per token (padded to the longest sequence).
GROWS = -1


@dataclass(frozen=True, kw_only=True)
class MixerConfig(Checked):
    """What every mixer's config has."""

    heads: Count = 4
    """Heads, each with a state of its own."""
    from_model: ClassVar[tuple[str, ...]] = ()
    """Fields that the model around the mixer fills in unless they are given: `dropout`, `max_length`."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Fields that have a name together: `prism:literal` is the mixer with those of `literal`."""
    mixer: ClassVar[Callable[..., "Mixer"]]
    """What it configures: the class whose `Config` it is."""

    def build(self, dim: int) -> "Mixer":
        """A mixer of model width `dim`, its weights drawn from torch's generator."""
        at_least("dim", dim, 1)
        mixer = self._make(dim)
        initialise(mixer)
        return mixer

    def _make(self, dim: int) -> "Mixer":
        """Without its initial weights."""
        return self.mixer(dim, self)

    def head_size(self, dim: int, size: int | None, name: str) -> int:
        """The width of one head: `size` where given, else an even share of `dim`."""
        if size is not None:
            return size
        if dim % self.heads:
            raise InputError(f"dim {dim} does not divide by heads {self.heads}: change one, or set {name}")
        return dim // self.heads


@dataclass(frozen=True, kw_only=True)
class ConvConfig(MixerConfig):
    """What the config of a mixer with a short convolution has."""

    conv_size: Count = 4
    """Window of the short convolution, in tokens."""


@dataclass(frozen=True, kw_only=True)
class HeadSizesConfig(MixerConfig):
    """What the config of a mixer has whose heads may have other widths than dim / heads."""

    head_key: Count | None = None
    """Width K of a head's keys; None: dim / heads."""
    head_value: Count | None = None
    """Width V of a head's values; None: dim / heads."""

    def head_sizes(self, dim: int) -> tuple[int, int]:
        """(K, V) in a model of width `dim`."""
        return self.head_size(dim, self.head_key, "head_key"), self.head_size(dim, self.head_value, "head_value")


class Mixer(nn.Module, ABC):
    """Mixes tokens along a sequence, causally. Subclasses give `mix`, `state_shapes` and `state_flops`."""

    Config: ClassVar[type[MixerConfig]]
    parallel: ClassVar[bool] = True
    """Whether the whole sequence is computed at once: no operand depends on the state."""
    sequences_only: ClassVar[bool] = False
    """Whether `mix` takes sequences [B, T, D] alone: `step` then gives it sequences of one token."""
    whole_block: ClassVar[bool] = False
    """Whether norms, residual and feed-forward are the mixer's own: the backbone then adds none of them."""
    takes_times: ClassVar[bool] = False
    """Whether `times` is used."""
    splits: ClassVar[bool] = False
    """Whether a sequence may lie on several processes, each with a segment: all that moves along it is the short
    convolution, the token before and the delta rule."""
    needs_positions: ClassVar[bool] = False
    """Whether it is published with learned positions, without which it knows no order."""
    out: nn.Linear
    """The projection that writes to the residual stream (absent where `whole_block`)."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "Config" in vars(cls):
            cls.Config.mixer = cls

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    @abstractmethod
    def mix(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens D"], State]:
        """`forward` and, unless `sequences_only`, `step`, on arguments that have been checked.

        Whatever moves along the sequence goes through `pace`; where `takes_times`, `times` is a fourth argument.
        """

    @abstractmethod
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each tensor of the state, without the first axis (the sequence); `GROWS` where it does."""

    @abstractmethod
    def state_flops(self, length: int) -> int:
        """Floating-point operations of one token's update and read of the state, after `length` tokens."""

    def state_size(self, length: int = 0) -> int:
        """Numbers remembered for one sequence after `length` tokens (the same for any length if linear)."""
        return sum(prod(length if n == GROWS else n for n in shape) for shape in self.state_shapes())

    def flops(self, length: int = 0) -> int:
        """Floating-point operations of one token forward, after `length` tokens: linear maps and the state."""
        maps = sum(part.weight.numel() for part in self.modules() if isinstance(part, nn.Linear))
        return 2 * maps + self.state_flops(length)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        state: State | None = None,
        cu_seqlens: Limits | Segment | None = None,
        times: Int[Tensor, "B T 2"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], State]:
        """Whole sequences: dense, or packed into one row with `cu_seqlens`; or this process's segment of them.

        Args:
            x: One row per sequence, or all sequences in the one row that there is.
            state: What an earlier call returned for the tokens before these; None at the start.
            cu_seqlens: Limits 0, …, T of packed sequences, or their `Packing`; or the `Segment` that x is.
            times: For each token, in seconds, when it happened and when the one after it is asked for; only
                mixers that model time use it.

        Returns:
            The outputs, and the state after the last token of every sequence.
        """
        self._check("x", x, 3, "[B, T, D]")
        pace = self._pace(cu_seqlens, state, x)
        self._check_state(state, pace.count(x), x)
        return self.mix(x, state, pace, *self._times(times, x))

    def step(
        self, x_t: Float[Tensor, "N D"], state: State | None = None, times: Int[Tensor, "N 2"] | None = None
    ) -> tuple[Float[Tensor, "N D"], State]:
        """One token of every sequence."""
        self._check("x_t", x_t, 2, "[N, D]")
        self._check_state(state, x_t.shape[0], x_t)
        given = self._times(times, x_t)
        if not self.sequences_only:
            return self.mix(x_t, state, OneToken(), *given)
        y, state = self.mix(x_t.unsqueeze(1), state, Sequences(), *(y if y is None else y.unsqueeze(1) for y in given))
        return y.squeeze(1), state

    def _pace(self, limits: Limits | Segment | None, state: State | None, x: Tensor) -> Sequences | Segments:
        if not isinstance(limits, Segment):
            return Sequences(Packing.of(limits, x.shape[0], x.shape[1]))
        if not self.splits:
            raise InputError(f"{type(self).__name__} cannot share a sequence between processes: use a delta-rule mixer")
        if state is not None:
            raise ValueError("a sequence on several processes starts from nothing: leave out state")
        return Segments(limits)

    def _times(self, times: Tensor | None, x: Tensor) -> tuple[Tensor | None, ...]:
        """What `mix` takes beyond the rest."""
        if times is not None and times.shape != (*x.shape[:-1], 2):
            raise ValueError(f"times must have shape {[*x.shape[:-1], 2]}, got {describe(times)}")
        return (times,) if self.takes_times else ()

    def _check(self, name: str, x: Tensor, rank: int, letters: str) -> None:
        warn_if_forked()
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.ndim != rank or x.shape[-1] != self.dim:
            raise ValueError(f"{name} must have shape {letters} with D = {self.dim}, got {describe(x)}")
        own = next(self.parameters())
        if x.device != own.device:
            raise ValueError(f"{name} is on {x.device} but the mixer is on {own.device}: move one of them")
        if x.dtype != own.dtype and not autocasts(x.device.type):
            raise ValueError(f"{name} has dtype {x.dtype} but the mixer has {own.dtype}: cast one of them")

    def _check_state(self, state: State | None, sequences: int, x: Tensor) -> None:
        if state is None:
            return
        shapes = self.state_shapes()
        if not isinstance(state, tuple) or len(state) != len(shapes):
            raise ValueError(f"state must be a tuple of {len(shapes)} tensors, as an earlier call returned")
        for i, (part, shape) in enumerate(zip(state, shapes, strict=True)):
            wanted = (sequences, *shape)
            if part.ndim != len(wanted) or any(n not in (m, GROWS) for m, n in zip(part.shape, wanted, strict=True)):
                raise ValueError(f"state[{i}] must have shape {list(wanted)}, got {describe(part)}")
            if part.device != x.device:
                raise ValueError(f"state[{i}] is on {part.device} but the input is on {x.device}")
