"""Mixture of memories: o = S^shared q + Σ_m g_m S^m q, g the top of softmax(Wx) renormalised; only those m move."""

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.config import Count
from prism.errors import InputError
from prism.layers.base.memory import Memory
from prism.layers.base.mixer import Mixer, MixerConfig, State
from prism.layers.base.pace import OneToken, Pace, Sequences
from prism.layers.base.parts import LinearEach, wide
from prism.layers.deltanet import GatedDeltaNetConfig
from prism.layers.gla import GatedLinearAttentionConfig
from prism.layers.prism import PrismConfig
from prism.ops.common.packing import Packing, lengths_of

Inner = Literal["gated-deltanet", "gla"]


@dataclass(frozen=True, kw_only=True)
class RoutingConfig(MixerConfig):
    """How tokens are sent to memories."""

    memories: Count = 4
    """Memories that tokens choose from."""
    chosen: Count = 2
    """Memories that each token writes to and reads."""
    shared: bool = True
    """One more memory, which every token writes to and reads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chosen > self.memories:
            raise InputError(f"chosen must be at most memories = {self.memories}, got {self.chosen}")

    @abstractmethod
    def memory(self) -> MixerConfig:
        """The config of the mixer inside."""


@dataclass(frozen=True, kw_only=True)
class MomConfig(RoutingConfig):
    """Mixture of memories as published."""

    inner: Inner = "gated-deltanet"
    """The mixer inside each memory."""

    def memory(self) -> MixerConfig:
        """The mixer by its name, its other fields at their defaults."""
        return (GatedLinearAttentionConfig if self.inner == "gla" else GatedDeltaNetConfig)(heads=self.heads)


@dataclass(frozen=True, kw_only=True)
class PrismMomConfig(RoutingConfig, PrismConfig):
    """PRISM inside a mixture of memories: its fields, and the routing's."""

    def memory(self) -> MixerConfig:
        """PRISM with these fields."""
        return PrismConfig(**{field.name: getattr(self, field.name) for field in fields(PrismConfig)})

    def _make(self, dim: int) -> "PrismMixtureOfMemories":  # type: ignore[override]
        return PrismMixtureOfMemories(dim, self)


class Routes(NamedTuple):
    """Where the tokens go. A row is one visit of a token to a memory; rows are sorted by memory, sequence, time."""

    weight: Tensor  # [tokens, visits]: how much of each memory's read a token takes
    rows: Tensor  # [tokens, visits]: the row of each visit
    token: Tensor  # [rows]: whose visit a row is
    place: Tensor  # [rows]: memory · N + sequence
    counts: list[int]  # rows of each memory


class Mixture(Mixer):
    """A router picks memories, each with its own maps to what is written and its own state."""

    @abstractmethod
    def __init__(self, dim: int, config: RoutingConfig):
        super().__init__(dim)
        self.config = config
        inner = config.memory()._make(dim)
        if not isinstance(inner, Memory):
            raise InputError(f"inner must be a matrix memory, got {type(inner).__name__}")
        self.inner, self.states = inner, config.memories + config.shared
        self.common = {name: n for name, n in inner.sizes.items() if name in inner.common}
        self.own = {name: n for name, n in inner.sizes.items() if name not in inner.common}
        inner.project = nn.Linear(dim, sum(self.common.values()), bias=False)
        self.project = LinearEach(self.states, dim, sum(self.own.values()))
        self.router = nn.Linear(dim, config.memories, bias=False)
        self.out = inner.out
        del inner.out  # the mixture writes to the residual stream, once

    def mix(
        self, x: Float[Tensor, "*tokens D"], state: State | None, pace: Pace
    ) -> tuple[Float[Tensor, "*tokens D"], State]:
        """Each memory reads the tokens that chose it, as sequences of its own; their reads are summed."""
        tokens = x.flatten(0, -2)
        packing = pace.packing if isinstance(pace, Sequences) else None
        lengths = lengths_of(len(x), len(tokens) // max(len(x), 1), None if packing is None else packing.bounds)
        N, sequence = len(lengths), torch.arange(len(lengths), device=x.device)
        routes = self.route(
            tokens, sequence.repeat_interleave(torch.tensor(lengths, dtype=torch.long, device=x.device)), N
        )
        inner, before = self._visited(state, pace, routes, N)
        rows = tokens.index_select(0, routes.token)
        rows = rows.unsqueeze(0) if isinstance(inner, Sequences) else rows
        write, gate, S, carried = self.inner.operands(rows, before, inner, lambda u: self._project(u, routes.counts))
        o, S = inner.run(write, S)
        read = o.flatten(0, -3)[routes.rows]  # [tokens, visits, H, V]
        o = torch.einsum("tj,tjhv->thv", routes.weight.to(o.dtype), read)
        # with an anchor, the gate depends on the memory: the first visit is to the shared or strongest one
        first = None if gate is None else gate.flatten(0, -2)[routes.rows[:, 0]]
        y = self.out(self.inner.read(o, first)).view(x.shape)
        return y, self._after((*carried, S), state, inner, routes, N)

    def _visited(self, state: State | None, pace: Pace, routes: Routes, N: int) -> tuple[Pace, State | None]:
        """What the memories see: packed sequences, one per memory and sequence, or the tokens that came to each."""
        if isinstance(pace, OneToken):
            place = routes.place % N, routes.place // N  # sequence, memory
            return pace, None if state is None else tuple(part[place] for part in state)
        limits = torch.bincount(routes.place, minlength=self.states * N).cumsum(0).tolist()
        before = None if state is None else tuple(part.transpose(0, 1).flatten(0, 1) for part in state)
        return Sequences(Packing((0, *limits))), before

    def _after(self, new: State, state: State | None, pace: Pace, routes: Routes, N: int) -> State:
        """The state of every memory: after one token, those that were not visited stay."""
        if isinstance(pace, Sequences):
            return tuple(part.unflatten(0, (self.states, N)).transpose(0, 1) for part in new)
        place = routes.place % N, routes.place // N
        if state is None:
            state = tuple(part.new_zeros(N, self.states, *part.shape[1:]) for part in new)
        return tuple(old.index_put(place, part.to(old.dtype)) for old, part in zip(state, new, strict=True))

    def _project(self, u: Tensor, counts: list[int]) -> Tensor:
        """The projection of the mixer inside, from the common and the memories' own maps."""
        part = dict(zip(self.common, self.inner.project(u).split(list(self.common.values()), -1), strict=True))
        part |= dict(zip(self.own, self.project(u, counts).split(list(self.own.values()), -1), strict=True))
        return torch.cat([part[name] for name in self.inner.sizes], -1)

    def route(self, x: Float[Tensor, "tokens D"], sequence: Int[Tensor, " tokens"], N: int) -> Routes:
        """Each token's memories; the shared one, where there is one, comes first with weight 1."""
        weight, memory = wide(self.router(x)).softmax(-1).topk(self.config.chosen, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        if self.config.shared:
            weight = torch.cat([torch.ones_like(weight[:, :1]), weight], -1)
            memory = torch.cat([torch.full_like(memory[:, :1], self.config.memories), memory], -1)
        place, order = (memory * N + sequence[:, None]).flatten().sort(stable=True)
        rows = torch.empty_like(order)
        rows[order] = torch.arange(len(order), device=x.device)
        counts = torch.bincount(memory.flatten(), minlength=self.states).tolist()
        return Routes(weight, rows.view_as(memory), order // memory.shape[1], place, counts)

    def balance(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, ""]:
        """The published auxiliary loss: 1 when the memories share the tokens evenly, `memories` when one has all."""
        chance = wide(self.router(x)).softmax(-1).flatten(0, -2)
        memory = chance.topk(self.config.chosen, -1).indices.flatten()
        share = torch.bincount(memory, minlength=self.config.memories) / max(memory.numel(), 1)
        return self.config.memories * (share.to(chance.dtype) * chance.mean(0)).sum()

    @property
    def visits(self) -> int:
        """Memories that a token writes to and reads."""
        return self.config.chosen + self.config.shared

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The state of the mixer inside, once for each memory."""
        return tuple((self.states, *shape) for shape in self.inner.state_shapes())

    def state_flops(self, length: int) -> int:
        """The memories that a token visits."""
        return self.visits * self.inner.state_flops(length)

    def flops(self, length: int = 0) -> int:
        """As for any mixer, but the maps of the mixer inside are used once per visit."""
        inside = sum(part.weight.numel() for part in self.inner.modules() if isinstance(part, nn.Linear))
        own = self.project.weight[0].numel()
        once = self.router.weight.numel() + self.out.weight.numel()
        return 2 * (once + self.visits * (inside + own)) + self.state_flops(length)


@final
class MixtureOfMemories(Mixture):
    """Mixture of memories: each token writes to and reads a few of many memories, all alike inside."""

    Config = MomConfig

    def __init__(self, dim: int, config: MomConfig):
        super().__init__(dim, config)


@final
class PrismMixtureOfMemories(Mixture):
    """Mixture of memories with PRISM in every one: the hybrid of the paper's discussion."""

    Config = PrismMomConfig

    def __init__(self, dim: int, config: PrismMomConfig):
        super().__init__(dim, config)
