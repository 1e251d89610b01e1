"""The experts, fitted to training events: what they see of queries and of live users, and what they add to scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.errors import InputError, suggest
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Queries
from prism.recommend.model.experts import kernels
from prism.recommend.model.experts.gates import GateWeights
from prism.recommend.model.experts.repeats import fit_repeats
from prism.recommend.model.experts.rows import named_arrays, table_from
from prism.recommend.model.experts.tables import ExpertTables, expert_tables
from prism.recommend.model.experts.user_state import EVENTS, LAST_TIME, UserState, empty_state

EXPERTS = ("repeat", "next", "pair", "follow", "together", "visit", "popular", "lately")
Floats = NDArray[np.float32]


def check_experts(names: Sequence[str]) -> None:
    """Refuses what is no expert."""
    for name in names:
        if name not in EXPERTS:
            raise InputError(f"there is no expert {name!r}: {suggest(name, EXPERTS)}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Experts:
    """All experts, fitted to training events."""

    tables: ExpertTables
    repeats: NDArray[np.float64]
    """The weights of the repeat expert's score."""
    novel: bool
    """Whether only items are asked for that the user has not taken."""
    timed: bool
    """Whether the time of the question is known; if not, it is that of the latest event."""

    @property
    def items(self) -> int:
        return self.tables.bank.shape[1]

    def contexts(self, log: Log, queries: Queries) -> Floats:
        """[queries, CONTEXT]: what the gates look at; queries come by user and time."""
        contexts = np.zeros((len(queries), kernels.CONTEXT), dtype=np.float32)
        kernels.query_contexts(*self._questions(log, queries), contexts)
        return contexts

    def add(self, scores: Floats, weights: Floats, log: Log, queries: Queries) -> None:
        """scores [queries, items] += Σ weight · feature."""
        kernels.add_to_queries(scores, weights, *self._questions(log, queries))

    def add_live(
        self, scores: Floats, features: Floats, gates: GateWeights, states: Sequence[UserState], asked: int | None
    ) -> None:
        """scores [users, items] += Σ weight · feature, asked at one time; None: that of each user's latest event."""
        for n, state in enumerate(states):
            timed = asked is not None and (self.timed or not state.facts[EVENTS])
            now = asked if timed else int(state.facts[LAST_TIME])
            kernels.add_live(scores[n], features[n], gates, state, now, self.tables, self.repeats)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All tables by name, for a file."""
        return dict(named_arrays(self.tables))

    def _questions(self, log: Log, queries: Queries) -> tuple[object, ...]:
        longest = int((queries.positions - log.offsets[queries.users]).max(initial=1))
        state = empty_state(max(1, min(longest, self.items)))
        return (
            log.offsets, log.items, log.times, queries.users, queries.positions, self.items, state,
            self.tables, self.repeats, self.timed,
        )  # fmt: skip


def experts_from(arrays: dict[str, NDArray[Any]], repeats: NDArray[np.float64], *, novel: bool, timed: bool) -> Experts:
    """The inverse of `arrays`."""
    return Experts(tables=table_from(ExpertTables, arrays), repeats=repeats, novel=novel, timed=timed)


def fit_experts(train: Log, *, novel: bool, timed: bool, repeats: NDArray[np.float64] | None = None) -> Experts:
    """From training events; `repeats` if they are known already."""
    weights = fit_repeats(train, timed=timed) if repeats is None else repeats
    return Experts(tables=expert_tables(train), repeats=weights, novel=novel, timed=timed)
