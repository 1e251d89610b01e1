"""Recommendations for many users at once, in blocks of them."""

from collections.abc import Iterable

import numpy as np
import polars as pl
from jaxtyping import Bool
from torch import Tensor

from prism.errors import InputError
from prism.recommend.answer.ask import after_last
from prism.recommend.answer.choose import best
from prism.recommend.data.log import Ints, Log
from prism.recommend.evaluation.ranking import Scorer
from prism.recommend.runs.storage import ranking_frame

# Users, and scores, that exist at once.
BLOCK_USERS, BLOCK_SCORES = 1024, 16_000_000


def best_of_users(
    log: Log, scorer: Scorer, asked: Ints, k: int, exclude_seen: bool, mask: Bool[Tensor, " I"], at: int | None
) -> pl.DataFrame:
    """The k best items of each user, given by codes, in the order asked for."""
    if not len(asked):
        raise InputError("there is nobody to recommend to: give users, or events with users")
    users, order = np.unique(asked, return_inverse=True)
    items = len(mask)
    blanked, queries = after_last(log, users, items, at=at)
    parts = []
    for part in queries.blocks(max(1, min(BLOCK_USERS, BLOCK_SCORES // items))):
        scores, codes = best(scorer(blanked, part), mask, part.removed(blanked) if exclude_seen else None, k)
        parts.append((part.users, scores.cpu().numpy(), codes.cpu().numpy()))
    return ranking_frame(log, *(np.concatenate(column)[order] for column in zip(*parts, strict=True)))


def best_of_all(
    logs: Iterable[Log], scorer: Scorer, k: int, exclude_seen: bool, mask: Bool[Tensor, " I"]
) -> pl.DataFrame:
    """The same of every user of several logs, of which one is in memory at a time."""
    return pl.concat(best_of_users(log, scorer, np.arange(log.n_users), k, exclude_seen, mask, None) for log in logs)
