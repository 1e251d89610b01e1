"""A recommender's network ready for live users: item rows computed once, one step of many users' states in place."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prism.models.one_token import OneToken, StackState, versions
from prism.recommend.live.rows import embed
from prism.recommend.model.recommender import Events, gap_limits
from prism.recommend.trained import Trained

LIMITS = np.array(gap_limits())
# For each part of the state one array, or tensor, the first axis of which is the user.
States = list[Any]


class LiveModel(ABC):
    """Takes events of many users at once; what a user's state is, and where it lies, is the caller's affair.

    A state is the one after an event where the model is not told when the next comes (`eager`); else the one before
    the last event, which is only complete when the next is known.
    """

    _fresh: States
    first: Tensor
    """[1, D]: features of someone without events."""

    @torch.inference_mode()
    def __init__(self, recommender: Trained):
        model = recommender.model.eval()
        self.model, self.items, self.device = model, model.items, recommender.device
        self.eager = not model.config.query_time
        self._table = model._rows().detach()[: self.items].contiguous()

    @abstractmethod
    def room(self, count: int) -> States:
        """Room for so many users' states, each to be made new before it is used; on a CPU only what is takes memory."""

    @abstractmethod
    def row(self, states: States, user: int) -> States:
        """One user's state as numpy has it, block by block as in `ModelState`: the same on every device."""

    @abstractmethod
    def put(self, states: States, user: int, parts: States) -> None:
        """The inverse of `row`."""

    @abstractmethod
    def advance(self, states: States, rows: Any, codes: Any, since: Any, until: Any, *, keep: bool = True) -> Tensor:
        """Features [N, D] after one event each of the users `rows`, all different; their states move on if `keep`.

        Args:
            states: What `room` made.
            rows: [N]: users.
            codes: [N]: items.
            since: [N]: seconds since the user's event before; -1: there is none.
            until: [N]: seconds until the next, or until the answer is asked for; used where the model is not `eager`.
            keep: Whether the states are replaced by those after the event.
        """

    def renew(self, states: States, user: int) -> None:
        for part, fresh in zip(states, self._fresh, strict=True):
            part[user] = fresh[0]

    @torch.inference_mode()
    def scores(self, features: Tensor) -> Tensor:
        scores = features @ self._table.T
        return scores if self.model.bias is None else scores + self.model.bias


class CompiledModel(LiveModel):
    """On the CPU, all blocks in one compiled call; states are numpy's."""

    @torch.inference_mode()
    def __init__(self, recommender: Trained, one: OneToken):
        super().__init__(recommender)
        self._one, model = one, self.model
        rows = model._rows().detach().numpy()
        none = np.zeros((0, rows.shape[1]), rows.dtype)
        gaps = tuple(none if table is None else table.weight.detach().numpy() for table in (model.since, model.until))
        self._inputs = (rows, gaps, LIMITS, rows.dtype.type(rows.shape[1] ** 0.5))
        state = one.empty(1)
        start = np.array([self.items]), np.array([-1]), np.array([0])
        self.first = self._features(start, np.array([0]), state, state)
        self._fresh = [*state[0], *state[1]]

    def room(self, count: int) -> States:
        return [np.empty((count, *part.shape[1:]), part.dtype) for part in self._fresh]

    def row(self, states: States, user: int) -> States:
        return [part[user] for part in self._by_block(states)]

    def put(self, states: States, user: int, parts: States) -> None:
        for whole, part in zip(self._by_block(states), parts, strict=True):
            whole[user] = part

    def _by_block(self, states: States) -> States:
        """Each block's parts together; a block without convolution has no last inputs."""
        layers = self._one.layers
        pairs = zip(states[:layers], states[layers:], strict=True)
        return [part for pair in pairs for part in pair if part[0].size]

    @torch.inference_mode()
    def advance(self, states: States, rows: Any, codes: Any, since: Any, until: Any, *, keep: bool = True) -> Tensor:
        events, before = (codes, since, until), self._pair(states)
        if keep:
            return self._features(events, rows, before, before)
        return self._features(events, rows, before, self._pair(self.room(len(rows))), np.arange(len(rows)))

    def _pair(self, states: States) -> StackState:
        return tuple(states[: self._one.layers]), tuple(states[self._one.layers :])

    def _features(
        self, events: tuple[Any, Any, Any], rows: Any, before: StackState, after: StackState, to: Any = None
    ) -> Tensor:
        x = np.empty((len(rows), self._inputs[0].shape[1]), self._inputs[0].dtype)
        embed(*self._inputs, *events, x)
        return self.model._project(torch.from_numpy(self._one.advance(x, rows, before, after, to)))


class TensorModel(LiveModel):
    """Any blocks on any device, as the model's own step; states are tensors there, and stay there."""

    @torch.inference_mode()
    def __init__(self, recommender: Trained):
        super().__init__(recommender)
        begin = self._events(np.array([self.items]), np.array([-1]), np.array([0]))
        self.first, state = self.model.step(begin, None)
        self._sizes = [len(block) for block in state]
        self._fresh = [part.clone() for block in state for part in block]

    def room(self, count: int) -> States:
        return [part.new_empty(count, *part.shape[1:]) for part in self._fresh]

    def row(self, states: States, user: int) -> States:
        return [part[user].cpu().numpy() for part in states]

    def put(self, states: States, user: int, parts: States) -> None:
        for whole, part in zip(states, parts, strict=True):
            whole[user] = torch.from_numpy(part.copy()).to(self.device)

    @torch.inference_mode()
    def advance(self, states: States, rows: Any, codes: Any, since: Any, until: Any, *, keep: bool = True) -> Tensor:
        where = torch.from_numpy(rows).to(self.device)
        given = iter([part[where] for part in states])
        state = tuple(tuple(next(given) for _ in range(size)) for size in self._sizes)
        y, after = self.model.step(self._events(codes, since, until), state)
        if keep:
            for part, new in zip(states, (one for block in after for one in block), strict=True):
                part[where] = new
        return y

    def _events(self, codes: Any, since: Any, until: Any) -> Events:
        times = np.stack([np.zeros_like(until), until], 1)
        return Events(*(torch.from_numpy(part) for part in (codes, since, times))).to(self.device)


def live_model(recommender: Trained) -> LiveModel:
    """What suits a recommender's model and the device that it is on; made once, until its weights change."""
    now = versions(recommender.model.parameters())
    if recommender.live is None or recommender.live[0] != now:
        recommender.live = now, _live_model(recommender)
    return recommender.live[1]


def _live_model(recommender: Trained) -> LiveModel:
    backbone = recommender.model.backbone
    blocks = list(backbone.blocks)
    if backbone.positions is None and OneToken.fits(blocks, backbone.norm):  # type: ignore[arg-type]
        return CompiledModel(recommender, OneToken(blocks, backbone.norm))  # type: ignore[arg-type]
    return TensorModel(recommender)
