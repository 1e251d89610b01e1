"""A recommender's network ready for live users: item rows computed once, one step of many users' states in place."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from prism.models.one_token import OneToken
from prism.recommend.model.recommender import gap_limits

if TYPE_CHECKING:
    from prism.recommend.recommender import Recommender

LIMITS = np.array(gap_limits())
# For each part of the state one array, the first axis of which is the user.
States = list[Any]


class LiveModel:
    """Takes events of many users at once; what a user's state is, and where it lies, is the caller's affair.

    A state is the one after an event where the model is not told when the next comes (`eager`); else the one before
    the last event, which is only complete when the next is known.
    """

    @torch.inference_mode()
    def __init__(self, recommender: "Recommender"):
        model = recommender.model.eval()
        self.model, self.items = model, model.items
        self.eager = not model.config.query_time
        rows = model._rows().detach()
        self._table = rows[: self.items].contiguous()
        self._rows = rows.numpy()
        self._gaps = _rows_of(model.since), _rows_of(model.until)
        self._scale = np.float32(model.config.backbone.dim**0.5)
        blocks = list(model.backbone.blocks)
        fits = model.backbone.positions is None and OneToken.fits(blocks)  # type: ignore[arg-type]
        self._one = OneToken(blocks, model.backbone.norm) if fits else None  # type: ignore[arg-type]
        self._fresh, self.first = self._begin()

    def _begin(self) -> tuple[States, Any]:
        """The state after the start token, and its features: those of someone without events."""
        x = self._embed(np.array([self.items]), np.array([-1]), np.array([0]))
        if self._one is not None:
            state = self._one.empty(1)
            features = self._one.advance(x.numpy(), np.array([0]), state, state)
            return [*state[0], *state[1]], self._project(torch.from_numpy(features))
        y, parts = self.model.backbone.step(x, None, torch.zeros(1, 2, dtype=torch.long))
        return [part.numpy().copy() for block in parts for part in block], self._project(y)

    def room(self, count: int) -> States:
        """Room for so many users' states, each to be made new before it is used; what is never used takes no memory."""
        return [np.empty((count, *part.shape[1:]), part.dtype) for part in self._fresh]

    def renew(self, states: States, rows: Any) -> None:
        """Makes these users new."""
        for part, fresh in zip(states, self._fresh, strict=True):
            part[rows] = fresh

    def row(self, states: States, user: int) -> States:
        """One user's state, block by block as `ModelState` has it."""
        if self._one is None:
            return [part[user] for part in states]
        histories, S = states[: self._one.layers], states[self._one.layers :]
        pairs = zip(histories, S, strict=True)
        return [part[user] for pair in pairs for part in pair if part[user].size]

    def put(self, states: States, user: int, parts: States) -> None:
        """The inverse of `row`."""
        if self._one is None:
            kept = states
        else:
            histories, S = states[: self._one.layers], states[self._one.layers :]
            kept = [part for pair in zip(histories, S, strict=True) for part in pair if part[user].size]
        for whole, part in zip(kept, parts, strict=True):
            whole[user] = part

    @torch.inference_mode()
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
        x = self._embed(codes, since, until)
        if self._one is None:
            return self._advance_by_blocks(states, rows, x, keep)
        before, where = states, rows
        if not keep:
            before, where = [part[rows] for part in states], np.arange(len(rows))
        pair = (tuple(before[: self._one.layers]), tuple(before[self._one.layers :]))
        return self._project(torch.from_numpy(self._one.advance(x.numpy(), where, pair, pair)))

    def _advance_by_blocks(self, states: States, rows: Any, x: Tensor, keep: bool) -> Tensor:
        parts, at = [torch.from_numpy(part[rows]) for part in states], 0
        given = []
        for block in self.model.backbone.blocks:
            count = len(block.mixer.state_shapes())  # type: ignore[union-attr, operator]
            given.append(tuple(parts[at : at + count]))
            at += count
        if at < len(parts):  # positions count a user's tokens
            given.append(tuple(parts[at:]))
        y, after = self.model.backbone.step(x, tuple(given), torch.zeros(len(x), 2, dtype=torch.long))
        if keep:
            for part, new in zip(states, (one for block in after for one in block), strict=True):
                part[rows] = new.numpy()
        return self._project(y)

    @torch.inference_mode()
    def scores(self, features: Tensor) -> Tensor:
        """[N, items]."""
        scores = features @ self._table.T
        return scores if self.model.bias is None else scores + self.model.bias

    def _project(self, y: Tensor) -> Tensor:
        return self.model._project(y)

    def _embed(self, codes: Any, since: Any, until: Any) -> Tensor:
        """As the model's own, in numpy: a handful of rows is not worth PyTorch's overhead."""
        of_since, of_until = self._gaps
        x = self._rows[codes]
        if of_since is not None:
            x = x + of_since[gap_buckets(since)]
        if of_until is not None:
            x = x + of_until[gap_buckets(until)]
        return torch.from_numpy(x * self._scale)


def _rows_of(table: torch.nn.Embedding | None) -> Any:
    return None if table is None else table.weight.detach().numpy()


def gap_buckets(seconds: Any) -> Any:
    """`gap_bucket` of a numpy array."""
    return LIMITS.searchsorted(seconds, side="right")
