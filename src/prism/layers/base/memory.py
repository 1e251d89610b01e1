"""Mixers with one code for whole sequences and for one token, among them matrix memories: out(read(recall(x)))."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.layers.base.mixer import Mixer, State
from prism.layers.base.parts import GatedRead, ShortConv
from prism.ops import delta_rule, delta_rule_step
from prism.ops.common.shift import previous_token
from prism.ops.gated.operands import Side
from prism.ops.gated.rule import gated_rule, gated_rule_step


class Write(NamedTuple):
    """What one token does to the state and reads from it, in the operator's symbols (the axis L may be left out)."""

    q: Tensor  # [..., H, K]
    k: Tensor  # [..., H, L, K]
    v: Tensor  # [..., H, L, V]
    beta: Tensor  # [..., H, L]
    log_alpha: Tensor | None = None  # [..., H]; None: no decay
    erase: Tensor | None = None  # [..., H]; None: beta of the first direction


class GatedWrite(NamedTuple):
    """The same where each channel of the key has its own decay (`gated_rule`)."""

    q: Tensor  # [..., H, K], or [..., H, V] where `side` is value
    k: Tensor  # [..., H, K]
    v: Tensor  # [..., H, V]
    log_alpha: Tensor  # [..., H, K]
    find: Tensor | None = None  # [..., H, K]; None: no erasure
    erase: Tensor | None = None  # [..., H, K]
    side: Side = "key"
    scale: float | None = None

    def of_one_dtype(self) -> "GatedWrite":
        """Under autocast maps give bfloat16 and gates float32: all take the widest."""
        parts = [part for part in (self.q, self.k, self.v, self.find, self.erase) if part is not None]
        widest = max((part.dtype for part in parts), key=lambda dtype: dtype.itemsize)
        q, k, v, *erasure = (part.to(widest) for part in parts)
        find, erase = erasure or (None, None)
        return self._replace(q=q, k=k, v=v, find=find, erase=erase)


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

    def gated_rule(self, write: GatedWrite, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The recurrence with a decay per channel, and its state after the last tokens."""
        o, S = gated_rule(
            **write.of_one_dtype()._asdict(), initial_state=state, output_final_state=True, cu_seqlens=self.cu_seqlens
        )
        assert S is not None
        return o, S

    def previous(self, x: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """The token before each (`last` [N, D] before the first; None: zeros), and the last token of each sequence."""
        return previous_token(x, last=last, cu_seqlens=self.cu_seqlens)


class OneToken(NamedTuple):
    """One token of every sequence: [N, …]."""

    def conv(self, conv: ShortConv, x: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor]:
        """One step of a short convolution."""
        return conv.step(x, history)

    def delta_rule(self, write: Write, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """One step of the recurrence."""
        return delta_rule_step(**write._asdict(), state=state)

    def gated_rule(self, write: GatedWrite, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """One step of the recurrence with a decay per channel."""
        return gated_rule_step(**write.of_one_dtype()._asdict(), state=state)

    def previous(self, x: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """The token before, and this one, which comes before the next."""
        return torch.zeros_like(x) if last is None else last, x


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
