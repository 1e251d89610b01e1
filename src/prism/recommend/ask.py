"""Questions about what comes after a history's last event, in the form that evaluation asks them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from prism.recommend.data.log import Codes, Ints, Log
from prism.recommend.data.splits import Queries


def after_last(log: Log, users: Ints, candidates: int, *, at: int | None = None) -> tuple[Log, Queries]:
    """Queries about the event after each user's last, and a log in which that event stands as a blank.

    The answer is asked for at time `at`; None: at the time of the user's last event.
    """
    blank = np.append(log.times, 0)[np.maximum(log.offsets[1:] - 1, 0)] if at is None else at
    asked = replace(
        log,
        offsets=log.offsets + np.arange(log.n_users + 1),
        items=np.insert(log.items, log.offsets[1:], 0),
        times=np.insert(log.times, log.offsets[1:], blank),
    )
    positions = asked.offsets[users + 1] - 1
    return asked, Queries(users=users, positions=positions, candidates=candidates, remove_seen=True)


def log_of(log: Log, codes: Codes, times: Sequence[int] | Ints | None) -> Log:
    """A log of one history, with the items of another log; without times all events share one."""
    when = np.zeros(len(codes), dtype=np.int64) if times is None else np.asarray(times, dtype=np.int64)
    return replace(log, offsets=np.array([0, len(codes)]), items=codes, times=when, user_ids=np.array([0]))
