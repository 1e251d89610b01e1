"""Mixers with one code for whole sequences and for one token, among them matrix memories: out(read(recall(x)))."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.layers.mixer import Mixer, State
from prism.layers.parts import GatedRead, ShortConv
from prism.ops import delta_rule, delta_rule_step


class Write(NamedTuple):
    """What one token does to the state and reads from it, in the operator's symbols (the axis L may be left out)."""

    q: Tensor  # [..., H, K]
    k: Tensor  # [..., H, L, K]
    v: Tensor  # [..., H, L, V]
    beta: Tensor  # [..., H, L]
    log_alpha: Tensor | None = None  # [..., H]; None: no decay
    erase: Tensor | None = None  # [..., H]; None: beta of the first direction


class Sequences(NamedTuple):
    """All tokens at once: [B, T, …], dense or packed."""

    cu_seqlens: Tensor | None = None

    def conv(self, conv: ShortConv, x: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor]:
        """A short convolution, and its history after the last tokens."""
        return conv(x, history, self.cu_seqlens)  # type: ignore[no-any-return]

    def delta_rule(self, write: Write, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The recurrence, and its state after the last tokens."""
        o, S = delta_rule(**write._asdict(), initial_state=state, output_final_state=True, cu_seqlens=self.cu_seqlens)
        assert S is not None
        return o, S


class OneToken(NamedTuple):
    """One token of every sequence: [N, …]."""

    def conv(self, conv: ShortConv, x: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor]:
        """One step of a short convolution."""
        return conv.step(x, history)

    def delta_rule(self, write: Write, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """One step of the recurrence."""
        return delta_rule_step(**write._asdict(), state=state)


Pace = Sequences | OneToken


class Paced(Mixer):
    """A mixer with one code, `run`, for both paces."""

    @abstractmethod
    def run(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens D"], State]:
        """The outputs and the next state; whatever moves along the sequence goes through `pace`."""

    def mix(
        self, x: Float[Tensor, "B T D"], state: State | None, cu_seqlens: Int[Tensor, " limits"] | None
    ) -> tuple[Float[Tensor, "B T D"], State]:
        """Whole sequences."""
        return self.run(x, state, Sequences(cu_seqlens))

    def mix_token(self, x: Float[Tensor, "N D"], state: State | None) -> tuple[Float[Tensor, "N D"], State]:
        """One token."""
        return self.run(x, state, OneToken())


class Memory(Paced):
    """A mixer whose parts a mixture of memories can tell apart: out(read(recall(x, project)))."""

    sizes: dict[str, int]
    """The parts of the projection, in order."""
    common: ClassVar[tuple[str, ...]] = ("q", "gate")
    """Parts that ask rather than remember: the memories of a mixture have the same weights for them."""
    project: nn.Linear
    read: GatedRead

    @abstractmethod
    def recall(
        self,
        x: Float[Tensor, "*tokens D"],
        state: State | None,
        pace: Pace,
        project: Callable[[Tensor], Tensor],
    ) -> tuple[Float[Tensor, "*tokens H V"], Float[Tensor, "*tokens HV"] | None, State]:
        """What each head reads, its gate (None: ungated) and the state; `project` stands for `self.project`."""

    def run(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens D"], State]:
        """Recall, normalise, gate, project out."""
        o, gate, state = self.recall(x, state, pace, self.project)
        return self.out(self.read(o, gate)), state
