"""Questions about what comes after a history's last event, in the form that evaluation asks them."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from prism.config import several
from prism.errors import InputError, Note
from prism.recommend.data.clock import Moment, seconds_of
from prism.recommend.data.log import Codes, Ids, Ints, Log
from prism.recommend.data.splits import Queries


def after_last(log: Log, users: Ints, candidates: int, *, at: int | None = None) -> tuple[Log, Queries]:
    """Queries about the event after each user's last, and a log in which that event stands as a blank.

    The answer is asked for at time `at`; None: at the time of the user's last event. An event whose item is no
    candidate is no event, as it is none to a live user's state.
    """
    known = log.items < candidates
    if not known.all():
        log = log.where(known)
    blank: Ints | int = 0 if at is None else at
    if at is None and log.n_events:  # who has no event has no time
        blank = np.where(log.lengths > 0, log.times[np.maximum(log.offsets[1:] - 1, 0)], 0)
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


def one_history(
    log: Log,
    items: int,
    user: object,
    history: Sequence[object] | Ids | None,
    times: Sequence[Moment] | Ints | None,
) -> Log:
    """A log of the events of one user of `log`, or of a history of items; a model knows the first `items` of them."""
    if (user is None) == (history is None):
        raise InputError("give either a user of the log or a history, e.g. user=42 or history=[7, 12]")
    if history is None:
        return _events_of(log, user)
    several("history", history)
    if times is not None and len(times) != len(history):
        raise InputError(f"times has {len(times)} entries for a history of {len(history)}: give one each")
    codes = log.item_codes(history)
    known = (codes >= 0) & (codes < items)
    if not known.all():
        missing = [repr(item) for item, ok in zip(history, known, strict=True) if not ok]
        some = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        what = f"{len(missing)} of {len(history)} items of the history are unknown to the model"
        warnings.warn(Note(f"{what} and were skipped: {some}"), stacklevel=4)
    when: Ints | None = None if times is None else seconds_of(times)[known]
    return log_of(log, codes[known].astype(np.int32), when)


def user_codes(log: Log, users: Sequence[object]) -> Ints:
    """The codes of users; the first that the log does not know is an error."""
    codes = log.known_users(list(users))
    if (codes < 0).any():
        _events_of(log, users[int(np.argmax(codes < 0))])  # says who is unknown
    return codes.astype(np.int64)


def _events_of(log: Log, user: object) -> Log:
    try:
        code = log.user_code(user)
    except InputError as error:
        if not log.n_users:
            raise InputError(
                f"user {user!r} is unknown: an exported model has no users' events; give them, or a history"
            ) from None
        raise InputError(f"{error}; for someone new, give a history of items instead") from None
    events = slice(log.offsets[code], log.offsets[code + 1])
    codes: Codes = log.items[events]
    return log_of(log, codes, log.times[events])
