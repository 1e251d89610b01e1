"""What the experts would have said of training events, had they not known their users."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prism.ops.additions import Additions
from prism.recommend.data.log import Ints, Log
from prism.recommend.model.experts import kernels
from prism.recommend.model.experts.fitted import Experts, Floats
from prism.recommend.model.experts.named import Named
from prism.recommend.model.experts.tables import FOLDS, ExpertTables, expert_tables
from prism.recommend.model.experts.user_state import UserState, empty_state, forget, restore, states_along

# Events between two states that are kept of long histories: a window is reached from the latest one before it.
STRIDE = 2048


class Seen(NamedTuple):
    """What the experts see and say of a batch's tokens."""

    contexts: Tensor
    """[tokens, CONTEXT]: what the gates look at."""
    added: Additions
    named: Named | None = None
    """For a loss that draws items."""


class Folds(NamedTuple):
    """Users are divided into folds; for those of one, tables are made from the events of all others.

    So no table contains the event that it is asked about, nor any later one of the same user. Popularity of late is
    that of all users, up to the start of a period: it knows nothing of what comes later.
    """

    tables: list[ExpertTables]
    bank: Tensor
    """[periods + 2 · folds + 1, items]: popularity of late; accidents and popularity without each fold; and zeros."""

    @classmethod
    def joined(cls, whole: ExpertTables, parts: Sequence[ExpertTables]) -> "Folds":
        """From the tables of all events and of those without each fold."""
        bank = np.concatenate([whole.bank[:-3], *(part.bank[-3:-1] for part in parts), whole.bank[-1:]])
        # the periods are everyone's, so that a period means the same in every fold
        tables = [part._replace(bank=whole.bank, period_starts=whole.period_starts) for part in parts]
        return cls(tables, torch.from_numpy(bank))

    @classmethod
    def of(cls, train: Log, fold: Ints, folds: int, whole: ExpertTables) -> "Folds":
        """From training events and the fold of each user; a single fold knows nothing."""
        parts, late = [], (whole.period_starts, whole.bank[:-3])
        for part in range(folds):
            others = train.where((fold != part)[train.users])
            parts.append(expert_tables(others, late) if others.n_events else _silent(whole))
        return cls.joined(whole, parts)


class TrainingFeatures:
    """Of some users' training events, by the tables of their folds."""

    def __init__(self, log: Log, experts: Experts, fold: Ints, folds: Folds):
        self._log, self._experts, self._fold = log, experts, fold
        self._tables, self._bank = folds
        periods = len(experts.tables.period_starts)
        # [folds, periods + 3]: where a row of one table's bank stands in that of all folds
        own = periods + 2 * np.arange(len(self._tables))[:, None]
        late = np.broadcast_to(np.arange(periods), (len(own), periods))
        self._places = np.concatenate([late, own, own + 1, np.full_like(own, len(self._bank) - 1)], 1)
        self._along = {user: self._states_along(user) for user in np.flatnonzero(log.lengths > STRIDE).tolist()}

    @classmethod
    def of_log(cls, train: Log, experts: Experts, folds: int = FOLDS, seed: int = 0) -> "TrainingFeatures":
        """Of a whole log, its users dealt to folds by chance."""
        folds = max(1, min(folds, train.n_users))
        fold = np.random.default_rng(seed).permutation(train.n_users) % folds
        return cls(train, experts, fold, Folds.of(train, fold, folds, experts.tables))

    def of(self, users: Ints, starts: Ints, ends: Ints) -> Seen:
        """Of the events starts[n] … ends[n] − 1 of each user, one after the other."""
        limits = np.concatenate([[0], np.cumsum(ends - starts)])
        contexts = np.zeros((limits[-1], kernels.CONTEXT), dtype=np.float32)
        rows, counts = np.zeros((limits[-1], kernels.ROWS), dtype=np.int64), np.zeros(limits[-1], dtype=np.int64)
        parts = list(self._windows(users, starts, ends, limits, contexts, rows, counts))
        entries = [np.concatenate(part) for part in zip(*parts, strict=True)]
        np.log(entries[2], out=entries[2])
        entry_starts = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
        items, kinds, values = (torch.from_numpy(part) for part in entries)
        added = Additions(entry_starts, items, kinds, values, self._bank, torch.from_numpy(rows))
        return Seen(torch.from_numpy(contexts), added)

    def _states_along(self, user: int) -> list[UserState]:
        events = slice(*self._log.offsets[user : user + 2])
        return states_along(self._log.items[events], self._log.times[events], STRIDE)

    def _reach(self, state: UserState, slots: NDArray[np.int32], user: int, position: int) -> int:
        """Brings the state to an event at most STRIDE before this position of the user's history; gives which."""
        reached = min(position // STRIDE, len(self._along.get(user, ())))
        if reached:
            restore(state, slots, self._along[user][reached - 1])
        else:
            forget(state, slots)
        return reached * STRIDE

    def _windows(
        self, users: Ints, starts: Ints, ends: Ints, limits: Ints, contexts: Floats, rows: Ints, counts: Ints
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int8], Floats]]:
        log, experts = self._log, self._experts
        state = empty_state(max(1, min(int(log.lengths.max(initial=1)), log.n_items)))
        slots, sums = np.full(log.n_items, -1, dtype=np.int32), np.zeros(log.n_items)
        own = np.empty(len(state.items))
        for n, (user, first, last) in enumerate(zip(users.tolist(), starts.tolist(), ends.tolist(), strict=True)):
            here, fold = slice(limits[n], limits[n + 1]), int(self._fold[user])
            places = np.zeros(last - first + 1, dtype=np.int64)
            begin = int(log.offsets[user])
            reached = begin + self._reach(state, slots, user, first - begin)
            yield kernels.window_entries(
                log.items, log.times, begin, reached, first, last, state, slots, own, sums,
                self._tables[fold], experts.repeats, experts.novel, experts.timed, contexts[here], rows[here], places,
            )  # fmt: skip
            counts[here] = np.diff(places)
            rows[here] = self._places[fold][rows[here]]


def _silent(tables: ExpertTables) -> ExpertTables:
    """Tables that know nothing: of a log with a single user."""
    return tables._replace(
        next=tables.next.without_entries(),
        near=tables.near.without_entries(),
        follow=tables.follow.without_entries(),
        together=tables.together.without_entries(),
        pair=tables.pair.without_entries(),
        bank=np.zeros_like(tables.bank),
    )
