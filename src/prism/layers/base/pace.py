"""The paces of a mixer, whole sequences, segments of them and one token: what moves along a sequence, one code."""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from prism.errors import InputError
from prism.layers.base.parts import ShortConv
from prism.ops import delta_rule, delta_rule_step, gated_rule, gated_rule_step
from prism.ops.common.packing import Packing
from prism.ops.common.shift import previous_token
from prism.ops.context.conv import history_across
from prism.ops.context.segment import Segment
from prism.ops.context.state import delta_rule_across
from prism.ops.gated.operands import Side

Rule = Callable[..., tuple[Tensor, Any]]


class Write(NamedTuple):
    """What one token does to the state and reads from it, in the operator's symbols (the axis L may be left out)."""

    q: Tensor  # [..., H, K]
    k: Tensor  # [..., H, L, K]
    v: Tensor  # [..., H, L, V]
    beta: Tensor  # [..., H, L]
    log_alpha: Tensor | None = None  # [..., H]; None: no decay
    erase: Tensor | None = None  # [..., H]; None: beta of the first direction

    @property
    def rule(self) -> tuple[Rule, Rule]:
        """The operator for whole sequences, and for one token."""
        return delta_rule, delta_rule_step

    def operands(self) -> dict[str, Any]:
        """The operator's arguments by name."""
        return self._asdict()


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

    @property
    def rule(self) -> tuple[Rule, Rule]:
        """The operator for whole sequences, and for one token."""
        return gated_rule, gated_rule_step

    def operands(self) -> dict[str, Any]:
        """The operator's arguments. Under autocast maps give bfloat16 and gates float32: all take the widest."""
        given = self._asdict()
        parts = {name: given[name] for name in ("q", "k", "v", "find", "erase") if given[name] is not None}
        widest = reduce(torch.promote_types, (part.dtype for part in parts.values()))
        return given | {name: part.to(widest) for name, part in parts.items()}


class Sequences(NamedTuple):
    """All tokens at once: [B, T, …], dense or packed."""

    packing: Packing | None = None

    def count(self, x: Tensor) -> int:
        """How many sequences there are."""
        return x.shape[0] if self.packing is None else len(self.packing)

    def conv(
        self, conv: ShortConv, x: Tensor, history: Tensor | None, norm: nn.LayerNorm | None = None
    ) -> tuple[Tensor, Tensor]:
        """A short convolution, behind a norm if given, and its history after the last tokens."""
        return conv(x, history, self.packing, norm)  # type: ignore[no-any-return]

    def run(self, write: Write | GatedWrite, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The recurrence, and its state after the last tokens."""
        whole, given = write.rule[0], write.operands()
        return whole(**given, initial_state=state, output_final_state=True, cu_seqlens=self.packing)

    def previous(self, x: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """The token before each (`last` [N, D] before the first; None: zeros), and the last token of each sequence."""
        return previous_token(x, last=last, cu_seqlens=self.packing)


class Segments(NamedTuple):
    """All tokens of this process's segment at once, with those of the others before and after it."""

    segment: Segment

    def count(self, x: Tensor) -> int:
        """How many sequences, or parts of sequences, lie here."""
        return x.shape[0] if self.segment.packing is None else len(self.segment.packing)

    def conv(
        self, conv: ShortConv, x: Tensor, history: Tensor | None, norm: nn.LayerNorm | None = None
    ) -> tuple[Tensor, Tensor]:
        """A short convolution whose history is with the processes before."""
        history = history_across(x, conv.state_shape()[0], self.segment)
        return conv(x, history, self.segment.packing, norm)  # type: ignore[no-any-return]

    def run(self, write: Write | GatedWrite, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The recurrence from the state that the processes before leave."""
        if isinstance(write, GatedWrite):
            raise InputError("a mixer with a decay per channel cannot share a sequence between processes: use another")
        return delta_rule_across(self.segment, **write.operands())

    def previous(self, x: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """The token before each, which may be with a process before."""
        last = history_across(x, 1, self.segment)[:, 0]
        return previous_token(x, last=last, cu_seqlens=self.segment.packing)


class OneToken(NamedTuple):
    """One token of every sequence: [N, …]."""

    def conv(
        self, conv: ShortConv, x: Tensor, history: Tensor | None, norm: nn.LayerNorm | None = None
    ) -> tuple[Tensor, Tensor]:
        """One step of a short convolution."""
        return conv.step(x, history, norm)

    def run(self, write: Write | GatedWrite, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """One step of the recurrence."""
        return write.rule[1](**write.operands(), state=state)

    def previous(self, x: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """The token before, and this one, which comes before the next."""
        return torch.zeros_like(x) if last is None else last, x


Pace = Sequences | Segments | OneToken
