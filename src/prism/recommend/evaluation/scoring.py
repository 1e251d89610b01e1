"""A trained model as a scorer: each user's history is encoded once, however many queries ask about it."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from prism.recommend.data.log import Ints, Log
from prism.recommend.data.splits import Queries
from prism.recommend.model.experts import Experts
from prism.recommend.model.recommender import RecommenderModel
from prism.recommend.training.histories import pack

# Tokens encoded at once: bounds the memory of long histories, and suits the cache.
BLOCK_TOKENS = 1 << 13


@dataclass(frozen=True)
class ModelScorer:
    """Scores of all candidates after each query's history."""

    model: RecommenderModel
    context: int | None = None
    """Events of a history that count; None: all."""
    experts: Experts | None = None
    """Mixed with the model, if it has gates for them."""

    def __call__(self, log: Log, queries: Queries) -> Float[Tensor, "Q I"]:
        """Scores [queries, candidates]; of a mixture, logarithms of probabilities."""
        with torch.inference_mode():
            x = self.features(log, queries)
            if self.experts is None:
                return self.model.scores(x)
            scores = self.model.scores(x).cpu().numpy()
            weights = self.model.expert_weights(x, self.experts.contexts(log, queries))
            self.experts.add(scores, weights, log, queries)
            return torch.from_numpy(scores).log_softmax(1)

    @torch.inference_mode()
    def features(self, log: Log, queries: Queries) -> Float[Tensor, "Q D"]:
        """The model's features after each query's history."""
        trained, parts = self.model.training, []
        self.model.eval()
        try:
            for a, b in _blocks(self._lengths(log, queries)):
                parts.append(self._encode(log, queries[a:b]))
        finally:
            self.model.train(trained)
        return torch.cat(parts)

    def tokens(self, log: Log, queries: Queries) -> int:
        """How many are encoded for so many queries."""
        return int(self._lengths(log, queries).sum())

    def _lengths(self, log: Log, queries: Queries) -> Ints:
        """[queries]: tokens that each query adds; those of one user share their history."""
        lengths = queries.positions - log.offsets[queries.users] + 1
        if self.context is not None:
            return np.minimum(lengths, self.context + 1)
        again = np.append(False, queries.users[1:] == queries.users[:-1])
        lengths[again] = np.diff(queries.positions)[again[1:]]
        return lengths

    def _encode(self, log: Log, queries: Queries) -> Tensor:
        starts, ends = log.offsets[queries.users], queries.positions
        alone = np.ones(len(queries), dtype=bool)
        if self.context is not None:
            starts = np.maximum(starts, ends - self.context)
        else:  # the last query of each user has the history of all of the user's
            alone = np.append(queries.users[1:] != queries.users[:-1], True)
        model, asked = self.model, log.times[queries.positions]
        device = model.embedding.weight.device
        packed, at = pack(
            log,
            starts[alone],
            ends[alone],
            items=model.items,
            query_time=model.config.query_time,
            asked=asked[alone],
        )
        x, _ = model.encode(packed.events.to(device), packed.cu_seqlens)
        row = np.cumsum(alone) - alone  # the sequence of each query
        token = _last_tokens(at, packed.cu_seqlens.numpy(), row, queries.positions)
        return x[torch.from_numpy(token).to(device)]


def _last_tokens(at: Ints, limits: Ints, row: Ints, positions: Ints) -> Ints:
    """The last token of sequence `row` whose event comes before each position."""
    sequence = np.repeat(np.arange(len(limits) - 1), np.diff(limits))
    # events grow along a sequence and start tokens are -1: one search over (sequence, event) finds all
    span = np.int64(max(at.max(initial=0), positions.max(initial=0)) + 2)
    found: Ints = np.searchsorted(sequence * span + at + 1, row * span + positions, side="right") - 1
    return found


def _blocks(lengths: Ints) -> list[tuple[int, int]]:
    """Ranges of queries of at most BLOCK_TOKENS tokens, or of one query."""
    cuts, used = [0], 0
    for n, length in enumerate(lengths.tolist()):
        if used and used + length > BLOCK_TOKENS:
            cuts.append(n)
            used = 0
        used += length
    return list(zip(cuts, [*cuts[1:], len(lengths)], strict=True)) if len(lengths) else []
