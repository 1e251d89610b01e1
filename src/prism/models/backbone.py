"""The backbone: pre-norm blocks x + mixer(norm(x)), x + SwiGLU(norm(x)), around any mixers, then a last norm."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from prism.config import Checked, Count, Fraction, Natural
from prism.errors import InputError
from prism.layers.base.initial import initialise, scale_writer
from prism.layers.base.mixer import MixerConfig, State
from prism.layers.prism import PrismConfig
from prism.models.block import Block
from prism.models.one_token import OneToken
from prism.models.positions import Positions
from prism.ops.common.packing import Limits, Packing
from prism.ops.context.segment import Segment, context_group


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(Checked):
    """A stack of blocks of one width."""

    dim: Count = 64
    """Width of the residual stream."""
    layers: Count = 2
    """Blocks."""
    mixer: MixerConfig | tuple[MixerConfig, ...] = field(default_factory=PrismConfig)
    """One mixer for all blocks, or one for each (a hybrid)."""
    ffn: Natural | None = None
    """Hidden width of the SwiGLU; None: 8/3 of the width, up to a multiple of 16; 0: blocks of a mixer alone."""
    positions: Natural = 0
    """Learned absolute positions, added to the input (SASRec); tokens beyond them share the last. 0: none."""
    dropout: Fraction = 0.0
    """Rate of dropout on what each mixer and SwiGLU adds, and on the input where positions are added to it."""
    checkpoint: bool = False
    """Keep only the input of each block for the backward pass and compute the rest again."""
    context_parallel: Count = 1
    """Neighbouring processes that share every sequence in training: each is given its segment of the tokens, and
    `cu_seqlens` of all of them. For mixers that `splits`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context_parallel > 1 and self.positions:
            raise InputError("context_parallel needs a model without positions: a segment does not know its own")
        if isinstance(self.mixer, tuple) and len(self.mixer) != self.layers:
            raise InputError(f"mixer lists {len(self.mixer)} mixers for layers = {self.layers}: give one each")

    def build(self) -> "Backbone":
        """A backbone, its weights drawn from torch's generator."""
        return Backbone(self)

    @property
    def mixers(self) -> tuple[MixerConfig, ...]:
        """The mixer of each block."""
        return self.mixer if isinstance(self.mixer, tuple) else (self.mixer,) * self.layers

    @property
    def hidden(self) -> int:
        """Hidden width of the SwiGLU."""
        return -(-8 * self.dim // (3 * 16)) * 16 if self.ffn is None else self.ffn


class Backbone(nn.Module):
    """Embeddings in, features out; the state is one mixer state per block, and with positions a count of tokens."""

    def __init__(self, config: BackboneConfig):
        super().__init__()
        self.config = config
        self._packed: OneToken | None = None
        count, dim = config.positions, config.dim
        self.positions = Positions(count, dim, config.dropout) if count else None
        blocks = [Block(dim, mixer, config.hidden, config.dropout) for mixer in config.mixers]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(config.dim, eps=1e-6)
        writers = config.layers * (1 + (config.hidden > 0))
        for block in blocks:
            if not block.mixer.whole_block:
                scale_writer(block.mixer.out, writers)
            if block.ffn is not None:
                initialise(block.ffn)
                scale_writer(block.ffn.out, writers)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        state: tuple[State, ...] | None = None,
        cu_seqlens: Limits | None = None,
        times: Int[Tensor, "B T 2"] | None = None,
        *,
        last: bool = False,
    ) -> tuple[Float[Tensor, " B #T D"], tuple[State, ...]]:
        """Whole sequences, dense or packed, from the state that an earlier call returned.

        With `last` the features of the last token alone, [B, 1, D]: after the last mixer nothing else is computed.
        """
        self._check(state)
        packing = self._limits(cu_seqlens, x)  # read here, once for all blocks
        states, count = [], None
        if self.positions is not None:
            assert not isinstance(packing, Segment)
            x, count = self.positions(x, state[-1] if state else None, packing)
        for n, (block, before) in enumerate(self._blocks(state), 1):
            ends = last and n == self.config.layers
            if self.config.checkpoint and self.training and torch.is_grad_enabled():
                x, after = checkpoint(block, x, before, packing, times, ends, use_reentrant=False)
            else:
                x, after = block(x, before, packing, times, ends)
            states.append(after)
        return self.norm(x), (*states,) if count is None else (*states, count)

    def step(
        self,
        x: Float[Tensor, "N D"],
        state: tuple[State, ...] | None = None,
        times: Int[Tensor, "N 2"] | None = None,
    ) -> tuple[Float[Tensor, "N D"], tuple[State, ...]]:
        """One token of every sequence: in one compiled call where the blocks allow it and no gradient is wanted."""
        one = None if torch.is_grad_enabled() or self.training else self._one_token(x)
        if one is None:
            return self.step_by_blocks(x, state, times)
        self._check(state)
        if state is not None:
            for (block, before), _ in zip(self._blocks(state), self.blocks, strict=True):
                block.mixer._check_state(before, x.shape[0], x)
        states: Sequence[State]
        if self.positions is None:
            y, states = one.step(x, state)
            return y, tuple(states)
        x, count = self.positions.step(x, state[-1] if state else None)
        y, states = one.step(x, state[:-1] if state else None)
        return y, (*states, count)

    def step_by_blocks(
        self,
        x: Float[Tensor, "N D"],
        state: tuple[State, ...] | None = None,
        times: Int[Tensor, "N 2"] | None = None,
    ) -> tuple[Float[Tensor, "N D"], tuple[State, ...]]:
        """The definition of `step`, one block after the other."""
        self._check(state)
        states, count = [], None
        if self.positions is not None:
            x, count = self.positions.step(x, state[-1] if state else None)
        for block, before in self._blocks(state):
            x, after = block.step(x, before, times)
            states.append(after)
        return self.norm(x), (*states,) if count is None else (*states, count)

    def train(self, mode: bool = True) -> "Backbone":
        """Training forgets what `step` has packed: a fused optimiser may write weights without telling."""
        if mode:
            self._packed = None
        return super().train(mode)

    def _one_token(self, x: Tensor) -> OneToken | None:
        """The blocks packed for `step`, packed again where a weight has changed; None: they cannot be."""
        blocks = cast("list[Block]", list(self.blocks))
        packed = self._packed
        if packed is None or not packed.fresh():
            packed = self._packed = OneToken(blocks, self.norm) if OneToken.fits(blocks, self.norm) else None
        return packed if packed is not None and packed.usable(x) else None

    def _limits(self, cu_seqlens: Limits | None, x: Tensor) -> Packing | Segment | None:
        size = self.config.context_parallel
        if size == 1 or not self.training:
            return Packing.of(cu_seqlens, x.shape[0], x.shape[1])
        return Segment.of(context_group(size, x.device.type), x.shape[1], cu_seqlens, x.shape[0], x.device)

    def state_size(self, length: int = 0) -> int:
        """Numbers remembered for one sequence after `length` tokens."""
        mixers = sum(block.mixer.state_size(length) for block, _ in self._blocks(None))
        return mixers + (self.positions is not None)

    def flops(self, length: int = 0) -> int:
        """Floating-point operations of one token forward, after `length` tokens: mixers and SwiGLUs."""
        blocks = [block for block, _ in self._blocks(None)]
        maps = [part for block in blocks if block.ffn is not None for part in (block.ffn.project, block.ffn.out)]
        return sum(block.mixer.flops(length) for block in blocks) + sum(2 * part.weight.numel() for part in maps)

    def _check(self, state: tuple[State, ...] | None) -> None:
        wanted = len(self.blocks) + (self.positions is not None)
        if state is not None and len(state) != wanted:
            positions = "" if self.positions is None else " and one for positions"
            raise ValueError(
                f"state must hold one entry for each of {len(self.blocks)} blocks{positions}, got {len(state)}"
            )

    def _blocks(self, state: tuple[State, ...] | None) -> Iterator[tuple[Block, State | None]]:
        for n, block in enumerate(self.blocks):
            yield cast(Block, block), None if state is None else state[n]
