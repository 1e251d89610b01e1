"""A live user: O(1) work per event, the same answers as encoding the whole history again."""

import warnings

from prism.errors import Note
from prism.recommend.answer.choose import Filter, Recommendation
from prism.recommend.data.clock import Moment
from prism.recommend.data.log import Log
from prism.recommend.live.pool import SessionPool
from prism.recommend.trained import Trained

# The only user of a session's pool.
ME = None


class Session:
    """A pool of one user.

    A model whose context is limited has no state of fixed size, nor has a baseline: there the last events are kept.
    """

    def __init__(self, recommender: Trained, history: Log | None = None, state: bytes | None = None):
        self._pool = SessionPool(recommender, 1)
        if state is not None:
            self._pool.restore(ME, state)
        elif history is not None:
            self._pool.begin(ME, history)

    @property
    def length(self) -> int:
        """Events so far."""
        return self._pool.length(ME)

    def update(self, item: object, time: Moment | None = None) -> bool:
        """Takes in one event; False if the item is unknown to the model, which is then skipped with a warning.

        `time` is in seconds since 1970, or a datetime, and not before the last event's; None: when that was.
        """
        known = self._pool.update([ME], [item], [time])[0]
        if not known:
            warnings.warn(Note(f"item {item!r} is unknown to the model and was skipped"), stacklevel=2)
        return known

    def recommend(
        self,
        k: int = 10,
        *,
        exclude_seen: bool | None = None,
        allow: Filter | None = None,
        deny: Filter | None = None,
        at: Moment | None = None,
    ) -> list[Recommendation]:
        """The k items most likely to come next, best first; see `Recommender.recommend`."""
        return self._pool.recommend([ME], k, exclude_seen=exclude_seen, allow=allow, deny=deny, at=at)[0]

    def state(self) -> bytes:
        """All that is remembered of this user and nothing of anyone else, for `Recommender.session(state=…)`."""
        return self._pool.state(ME)
