"""Session kNN: what stood near the latest item in the sessions that are most like the current one (V-SKNN, STAN).

sim(q, s) = Σ_{j in q and s} ½^{age of j / half_life} · ½^{days since s / fade} (/ √(items of s))
score(i)  = Σ_{s among the most similar} sim(q, s) · ½^{(distance of i from the latest common item − 1) / closeness}
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.config import Checked, Count, Positive, Share
from prism.ops.cpu import threads
from prism.recommend.data.log import Codes, Ints, Log
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.baselines.session_loops import score_sessions
from prism.recommend.evaluation.scores import Scores

DAY = 86_400


@dataclass(frozen=True, kw_only=True)
class SessionKNN(Checked):
    """Sessions like the latest events of the history vote for what they hold near the item in common."""

    half_life: Positive = 1.0
    """Events after which an item of the history weighs half (STAN's λ₁)."""
    fade: Positive | None = None
    """Days after which a session weighs half (STAN's λ₂); None: all weigh the same."""
    closeness: Positive | None = 3.0
    """Events away from the common item at which an item of a session weighs half (λ₃); None: all weigh the same."""
    before: Share = 0.5
    """Weight of what stands before the common item, where what stands after it has 1."""
    neighbours: Count = 100
    """Sessions that vote."""
    recent: Count = 500
    """Of the sessions with an item, so many of the latest are looked at: bounds the work on popular items."""
    last: Count = 20
    """History events that count."""
    reach: Count = 20
    """Events on each side of the common item that can be recommended."""
    by_length: bool = False
    """Divide a session's similarity by the root of its number of items, as STAN does and V-SKNN does not."""
    gap: Positive | None = None
    """Hours without an event that end a session; None: a user's whole history is one session."""

    def fit(self, train: Log) -> "SessionKNNScorer":
        limits = _sessions(train, self.gap)
        session = np.repeat(np.arange(len(limits) - 1), np.diff(limits))
        ends = train.times[limits[1:] - 1]
        # the last event of each (item, session); sessions of an item by their end, the latest first
        key = session * np.int64(train.n_items) + train.items
        _, from_end = np.unique(key[::-1], return_index=True)
        event = len(key) - 1 - from_end
        event = event[np.lexsort((event, -ends[session[event]], train.items[event]))]
        counts = np.bincount(train.items[event], minlength=train.n_items)
        sizes = np.bincount(session[event], minlength=len(ends))
        return SessionKNNScorer(
            config=self,
            limits=limits,
            events=train.items,
            ends=ends,
            starts=np.concatenate([[0], np.cumsum(counts)]),
            places=event,
            sessions=session[event],
            scale=(1 / np.sqrt(sizes) if self.by_length else np.ones(len(ends))).astype(np.float32),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SessionKNNScorer:
    config: SessionKNN
    limits: Ints
    """[sessions + 1]: events of session s are limits[s] … limits[s + 1] − 1."""
    events: Codes
    ends: Ints
    """[sessions]: when each ended."""
    starts: Ints
    """[items + 1]: where each item's sessions begin and end in `sessions` and `places`."""
    places: Ints
    """The item's last event in the session."""
    sessions: Ints
    scale: Scores

    def __call__(self, log: Log, queries: Queries) -> Scores:
        config = self.config
        query, items, age = queries.histories(log, config.last)
        known = items < queries.candidates
        query, items, age = query[known], items[known], age[known]
        begins = np.searchsorted(query, np.arange(len(queries) + 1))
        weights = (0.5 ** (age / config.half_life)).astype(np.float32)
        asked = log.times[queries.positions - 1]
        scores = np.zeros((len(queries), queries.candidates), dtype=np.float32)
        near = self._near()

        def some(first: int, last: int) -> None:
            score_sessions(
                scores,
                (first, last),
                (begins, items, weights, asked),
                (self.limits, self.events, self.ends, self.scale),
                (self.starts, self.places, self.sessions),
                near,
                (config.neighbours, config.recent),
                0.0 if config.fade is None else 1 / (config.fade * DAY),
            )

        # an event of a query looks at up to `recent` sessions; a multiply-add each, and the search for the best
        threads.run(some, np.diff(begins) * config.recent + config.neighbours * 2 * config.reach)
        return scores

    def _near(self) -> NDArray[np.float32]:
        """[2 · reach + 1]: the weight of an event by its place, from `reach` before the common one to as many after."""
        config = self.config
        offset = np.arange(-config.reach, config.reach + 1)
        near = np.ones(len(offset)) if config.closeness is None else 0.5 ** ((np.abs(offset) - 1) / config.closeness)
        near[offset < 0] *= config.before
        near[offset == 0] = 0.0  # the match itself is no evidence of what comes with it
        return near.astype(np.float32)


def _sessions(train: Log, gap: float | None) -> Ints:
    """Where sessions begin, and the end of the last: users' histories, cut where `gap` hours pass."""
    cuts = np.zeros(train.n_events + 1, dtype=bool)
    cuts[train.offsets] = True
    if gap is not None:
        cuts[1:-1] |= np.diff(train.times) > gap * 3600
    cuts[[0, -1]] = True
    return np.flatnonzero(cuts)
