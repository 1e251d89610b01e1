"""Histories as packed tensors: a start token and its events for each, no padding."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from prism.recommend.data.log import Ints, Log, concatenated_ranges
from prism.recommend.model.recommender import Events


class Packed(NamedTuple):
    """Sequences one after the other; the tokens of sequence n are cu_seqlens[n] … cu_seqlens[n + 1] − 1."""

    events: Events
    cu_seqlens: Tensor


def pack(
    log: Log,
    starts: Ints,
    ends: Ints,
    *,
    items: int,
    query_time: bool = False,
    asked: Ints | None = None,
) -> tuple[Packed, Ints]:
    """The events starts[n] … ends[n] − 1 of the log, for each n, without items that the model does not know.

    Args:
        log: The log.
        starts: The first event of each sequence.
        ends: One past the last.
        items: Items that the model knows; larger codes are skipped.
        query_time: Whether tokens learn when the next one comes; if not, `times` says it is at once.
        asked: When the answer after each sequence is asked for (used with `query_time`).

    Returns:
        The tensors, and the index in the log of each token's event (-1 for a start token).
    """
    event = concatenated_ranges(starts, ends - starts)
    sequence = np.repeat(np.arange(len(starts)), ends - starts)
    known = log.items[event] < items
    event, sequence = event[known], sequence[known]
    limits = np.concatenate([[0], np.cumsum(np.bincount(sequence, minlength=len(starts)) + 1)])
    first, at = limits[:-1], np.full(limits[-1], -1)
    is_event = np.ones(len(at), dtype=bool)
    is_event[first] = False
    at[is_event] = event
    tokens = np.where(is_event, log.items[at], items).astype(np.int64)
    times = _token_times(log.times[at], limits, asked)
    since = np.diff(times[:, 0], prepend=0)
    since[first] = -1
    since[first[np.diff(limits) > 1] + 1] = -1
    if not query_time:
        times[:, 1] = times[:, 0]
    events = Events(torch.from_numpy(tokens), torch.from_numpy(since), torch.from_numpy(times))
    return Packed(events, torch.from_numpy(limits)), at


def _token_times(when: Ints, limits: Ints, asked: Ints | None) -> Ints:
    """[T, 2]: when each token happened and when the next one does; a start token shares its first event's time."""
    first, last = limits[:-1], limits[1:] - 1
    empty = first == last
    when[first[~empty]] = when[first[~empty] + 1]
    when[first[empty]] = 0 if asked is None else asked[empty]
    following = np.append(when[1:], 0)
    following[last] = when[last] if asked is None else np.maximum(asked, when[last])  # never before the last event
    return np.stack([when, following], 1)
