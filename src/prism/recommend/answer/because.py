"""Why an item is recommended: how much its score falls when one event of the history is left out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from prism.config import at_least
from prism.errors import InputError
from prism.recommend.answer.ask import after_last
from prism.recommend.data.log import Ids, Ints, Log
from prism.recommend.evaluation.ranking import Scorer
from prism.recommend.recommender import Recommender

# Scores that exist at once: a service answers several such questions at a time.
BLOCK_SCORES = 2_000_000


class Reason(NamedTuple):
    """One event of the history."""

    item: Any
    """Its item."""
    effect: float
    """The score with the event less the score without it: above 0 where the recommendation leans on it."""
    age: int
    """Events after it: 0 for the latest."""
    name: str | None = None


def because(
    recommender: Recommender,
    item: object,
    user: object = None,
    *,
    history: Sequence[object] | Ids | None = None,
    times: Sequence[int] | Ints | None = None,
    last: int = 20,
    k: int = 5,
) -> list[Reason]:
    """The k events that an item's score leans on most, strongest first: exact, by leaving out one at a time.

    Args:
        recommender: The model, with or without users.
        item: What is recommended.
        user: A user of the log; or
        history: item ids of anyone, oldest first.
        times: Seconds since 1970 of the history's events.
        last: How many of the latest events are tried; each costs one reading of the history.
        k: How many to give.
    """
    log, items = recommender.history(user, history, times), recommender.model.items
    code = recommender.log.item_code(item)
    if code >= items:
        raise InputError(f"item {item!r} came after the model was trained: `prism update` adds it")
    return reasons(recommender.scorer, log, items, code, last=last, k=k)


def reasons(scorer: Scorer, log: Log, items: int, code: int, *, last: int, k: int) -> list[Reason]:
    """The same of a log of one history: how far the score in the column `code` falls; a model knows so many `items`."""
    at_least("last", last, 1)
    at_least("k", k, 1)
    known = np.flatnonzero(log.items < items)[-last:][::-1]
    if not len(known):
        return []
    every, queries = after_last(_without(log, known), np.arange(len(known) + 1), items)
    blocks = queries.blocks(max(1, BLOCK_SCORES // items))
    scores = np.concatenate([scorer(every, part)[:, code].double().cpu().numpy() for part in blocks])
    effects = scores[0] - scores[1:]
    order = np.argsort(-effects, kind="stable")[:k]
    codes = log.items[known[order]]
    ids, names = log.item_ids[codes].tolist(), [None] * len(codes) if log.item_names is None else log.item_names[codes]
    ages = log.n_events - 1 - known[order]
    return [
        Reason(item=id_, effect=effect, age=age, name=name)
        for id_, effect, age, name in zip(ids, effects[order].tolist(), ages.tolist(), names, strict=True)
    ]


def _without(log: Log, events: Ints) -> Log:
    """A log whose first user has the whole history, and whose others each lack one event of it."""
    whole = np.arange(log.n_events)
    taken = np.concatenate([whole, *(np.delete(whole, event) for event in events)])
    lengths = np.array([log.n_events, *([log.n_events - 1] * len(events))])
    return replace(
        log,
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        items=log.items[taken],
        times=log.times[taken],
        user_ids=np.arange(len(lengths)),
    )
