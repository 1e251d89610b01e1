"""Mixers that are a matrix memory, out(read(o, gate)) with o from one recurrence: those that a mixture can hold."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from prism.layers.base.mixer import Mixer, MixerConfig, State
from prism.layers.base.pace import GatedWrite, Pace, Write
from prism.layers.base.parts import GatedRead, PlainRead, ShortConv

Project = Callable[[Tensor], Tensor]


class Recall(NamedTuple):
    """What a memory asks of its recurrence, and what it keeps beside."""

    write: Write | GatedWrite
    gate: Tensor | None  # of the read; None: ungated
    S: Tensor | None  # the state before; None: zeros
    carried: tuple[Tensor, ...] = ()  # the rest of the state, after; S comes behind it


class Memory(Mixer):
    """A mixer whose parts a mixture of memories can tell apart: what it projects, remembers and reads."""

    splits = True
    config: MixerConfig
    K: int
    V: int
    sizes: dict[str, int]
    """The parts of the projection, in order."""
    common: ClassVar[tuple[str, ...]] = ("q", "gate")
    """Parts that ask rather than remember: the memories of a mixture have the same weights for them."""
    conv: ShortConv | None
    project: nn.Linear
    read: GatedRead | PlainRead

    def __init__(self, dim: int):
        super().__init__(dim)
        self.conv = None

    @abstractmethod
    def operands(self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace, project: Project) -> Recall:
        """Everything up to the recurrence; `project` stands for `self.project`."""

    def mix(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens D"], State]:
        """Recall, normalise, gate, project out."""
        write, gate, S, carried = self.operands(x, state, pace, self.project)
        o, S = pace.run(write, S)
        return self.out(self.read(o, gate)), (*carried, S)

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs where there is one, and S."""
        S = (self.config.heads, self.V, self.K)
        return (S,) if self.conv is None else (self.conv.state_shape(), S)

    def opened(self, state: State | None) -> tuple[Tensor | None, ...]:
        """The parts of a state, each None at the start."""
        return (None,) * len(self.state_shapes()) if state is None else state
