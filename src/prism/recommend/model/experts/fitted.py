"""All experts, fitted to training events: what they see of a query, and their distributions over items."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prism.errors import InputError, suggest
from prism.recommend.data.log import Ints, Log
from prism.recommend.data.splits import Queries
from prism.recommend.model.experts import kernels
from prism.recommend.model.experts.repeats import fit_repeats
from prism.recommend.model.experts.tables import ExpertTables, Rows, expert_tables
from prism.recommend.model.experts.user_state import EVENTS, LAST_TIME, UserState, empty_state

EXPERTS = ("repeat", "next", "near", "popular", "lately")
Floats = NDArray[np.float32]


class Views(NamedTuple):
    """What the experts see, one row per event or query."""

    contexts: Floats
    """[N, CONTEXT]: what the gates look at."""
    masses: Floats
    """[N, experts]: 0 where an expert has no distribution."""
    chances: Floats
    """[N, experts]: each expert's probability of the item that came."""


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
    """Whether only items are asked for that the user has not taken: shares are of those alone."""
    timed: bool
    """Whether the time of the question is known; if not, it is that of the latest event."""

    @property
    def items(self) -> int:
        return len(self.tables.popular)

    def contexts(self, log: Log, queries: Queries) -> tuple[Floats, Floats]:
        """(contexts, masses) of each query; queries come by user and time."""
        contexts = np.zeros((len(queries), kernels.CONTEXT), dtype=np.float32)
        masses = np.zeros((len(queries), len(EXPERTS)), dtype=np.float32)
        kernels.query_contexts(*self._questions(log, queries), contexts, masses)
        return contexts, masses

    def add(self, chances: NDArray[np.floating], gates: NDArray[np.floating], log: Log, queries: Queries) -> None:
        """chances [queries, items] += Σ gate · the expert's distribution."""
        kernels.add_to_queries(chances, gates, *self._questions(log, queries))

    def moments(self, states: Sequence[UserState], asked: Sequence[int | None]) -> "Moments":
        """Live users, each asked about at a time (None: that of the latest event)."""
        contexts = np.zeros((len(states), kernels.CONTEXT), dtype=np.float32)
        masses = np.zeros((len(states), len(EXPERTS)), dtype=np.float32)
        own, periods = [], []
        for n, (state, at) in enumerate(zip(states, asked, strict=True)):
            timed = at is not None and (self.timed or not state.facts[EVENTS])
            now = int(at) if timed and at is not None else int(state.facts[LAST_TIME])
            own.append(np.empty(max(state.distinct, 1)))
            periods.append(
                kernels.look(
                    state,
                    now,
                    self.tables,
                    self.repeats,
                    self._slots(state),
                    self.novel,
                    own[n],
                    contexts[n],
                    masses[n],
                )
            )
        return Moments(tuple(states), own, contexts, masses, periods)

    def add_live(self, chances: NDArray[np.floating], gates: NDArray[np.floating], moments: "Moments") -> None:
        """chances [users, items] += Σ gate · the expert's distribution."""
        for n, state in enumerate(moments.states):
            kernels.add_experts(
                chances[n], gates[n], state, moments.periods[n], self.tables, self._slots(state), self.novel,
                moments.own[n], moments.masses[n],
            )  # fmt: skip

    def _slots(self, state: UserState) -> NDArray[np.int32]:
        """[items]: -1 where an item was not taken; looked at only where the others alone are asked for."""
        slots = np.full(self.items if self.novel else 1, -1, dtype=np.int32)
        if self.novel:
            slots[state.items[: state.distinct]] = 0
        return slots

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All tables by name, for a file."""
        tables = self.tables
        flat = {f"{of}.{name}": part for of in ("next", "near") for name, part in getattr(tables, of)._asdict().items()}
        return flat | {name: getattr(tables, name) for name in ("popular", "period_starts", "recent", "ages")}

    def _questions(self, log: Log, queries: Queries) -> tuple[object, ...]:
        longest = int((queries.positions - log.offsets[queries.users]).max(initial=1))
        state = empty_state(max(1, min(longest, self.items)))
        return (
            log.offsets, log.items, log.times, queries.users, queries.positions, self.items, state,
            self.tables, self.repeats, self.novel, self.timed,
        )  # fmt: skip


class Moments(NamedTuple):
    """What the experts see of some users now."""

    states: tuple[UserState, ...]
    own: list[NDArray[np.float64]]
    contexts: Floats
    masses: Floats
    periods: list[int]


def experts_from(arrays: dict[str, NDArray[Any]], repeats: NDArray[np.float64], *, novel: bool, timed: bool) -> Experts:
    """The inverse of `arrays`."""
    tables = ExpertTables(
        next=Rows(**{name: arrays[f"next.{name}"] for name in Rows._fields}),
        near=Rows(**{name: arrays[f"near.{name}"] for name in Rows._fields}),
        **{name: arrays[name] for name in ("popular", "period_starts", "recent", "ages")},
    )
    return Experts(tables=tables, repeats=repeats, novel=novel, timed=timed)


def fit_experts(train: Log, *, novel: bool, timed: bool, repeats: NDArray[np.float64] | None = None) -> Experts:
    """From training events; `repeats` if they are known already."""
    weights = fit_repeats(train, timed=timed) if repeats is None else repeats
    return Experts(tables=expert_tables(train), repeats=weights, novel=novel, timed=timed)


def training_views(train: Log, experts: Experts, folds: int = 5, seed: int = 0) -> Views:
    """What the experts would have said of every training event, had they not known its user.

    Users are divided into folds; for those of one, tables are made from the events of all others. So no table
    contains the event that it is asked about, nor any later one of the same user.
    """
    events, n = train.n_events, len(EXPERTS)
    views = Views(
        np.zeros((events, kernels.CONTEXT), dtype=np.float32),
        np.zeros((events, n), dtype=np.float32),
        np.zeros((events, n), dtype=np.float32),
    )
    folds = min(folds, train.n_users)
    fold = np.random.default_rng(seed).permutation(train.n_users) % folds
    state = empty_state(max(int(train.lengths.max(initial=1)), 1))
    for part in range(folds):
        members: Ints = np.flatnonzero(fold == part)
        others = train.where((fold != part)[train.users]) if folds > 1 else train.where(np.zeros(events, dtype=bool))
        tables = expert_tables(others)
        kernels.training_chances(
            train.offsets, train.items, train.times, members, state, tables, experts.repeats, experts.novel,
            experts.timed, *views,
        )  # fmt: skip
    return views
