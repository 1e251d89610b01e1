"""Protocols: which events train, which are asked about, from what history and among which candidates."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prism.config import Checked, Count, Fraction
from prism.errors import InputError
from prism.recommend.data.log import Codes, Ints, Log, concatenated_ranges
from prism.registry import Registry

Targets = Literal["all", "first", "last"]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Queries:
    """Questions to a scorer. Query q: after `log.items[log.offsets[users[q]]:positions[q]]`, what comes next?

    The answer is `log.items[positions[q]]`, one of the first `candidates` item codes. In order of user, time.
    """

    users: Ints
    positions: Ints
    candidates: int
    """A scorer ranks item codes below this; larger codes in a history are items that training never saw."""
    remove_seen: bool
    """Whether items of the history are taken out of the ranking."""
    cold: int = 0
    """Events that are not asked about because their item is no candidate: report it."""
    no_history: int = 0
    """Events that are not asked about because nothing comes before them."""
    repeated: int = 0
    """Events that are not asked about because their item is removed as seen."""

    def __len__(self) -> int:
        return len(self.users)

    def facts(self) -> dict[str, Any]:
        """All but the queries themselves."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("users", "positions")}

    def __getitem__(self, part: slice) -> "Queries":
        return replace(self, users=self.users[part], positions=self.positions[part])

    def blocks(self, size: int) -> Iterator["Queries"]:
        """Consecutive parts of at most `size` queries."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def targets(self, log: Log) -> Codes:
        """[queries]: the item that came."""
        return log.items[self.positions]

    def histories(self, log: Log, last: int | None = None) -> tuple[Ints, Codes, Ints]:
        """(query, item, age) of history events, at most the `last` ones, oldest first; age 0 the latest."""
        starts = log.offsets[self.users]
        if last is not None:
            starts = np.maximum(starts, self.positions - last)
        lengths = self.positions - starts
        events = concatenated_ranges(starts, lengths)
        query = np.repeat(np.arange(len(self)), lengths)
        return query, log.items[events], self.positions[query] - 1 - events

    def removed(self, log: Log) -> tuple[Ints, Ints] | None:
        """(query, item) pairs out of the ranking, each once; None if nothing is removed."""
        if not self.remove_seen:
            return None
        query, items, _ = self.histories(log)
        known = items < self.candidates
        pairs = np.unique(query[known] * np.int64(self.candidates) + items[known])
        return pairs // self.candidates, pairs % self.candidates


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """A log divided by a protocol. Codes of `train` are the first codes of `log`, so models serve both."""

    protocol: str
    log: Log
    """Every event. Training's users and the candidate items come first."""
    train: Log
    """The training events; its items are the candidates."""
    valid: Queries
    test: Queries

    def training_events(self) -> Mask:
        """[events of `log`]: which of them are those of `train`, each user's in the same order."""
        found = np.zeros(self.log.n_events, dtype=bool)
        events = list(zip(self.log.items.tolist(), self.log.times.tolist(), strict=True))
        wanted = zip(self.train.users.tolist(), self.train.items.tolist(), self.train.times.tolist(), strict=True)
        starts, user, place = self.log.offsets.tolist(), -1, 0
        for whose, item, time in wanted:
            if whose != user:
                user, place = whose, starts[whose]
            place = events.index((item, time), place) + 1
            found[place - 1] = True
        return found

    def describe(self) -> str:
        """One line to print above results."""
        parts = [f"{self.protocol}: {self.train.n_events:,} training events of {self.train.n_users:,} users"]
        for name, part in (("validation", self.valid), ("test", self.test)):
            left = {"cold": part.cold, "without history": part.no_history, "repeated": part.repeated}
            reasons = ", ".join(f"{count:,} {why}" for why, count in left.items() if count)
            parts.append(f"{len(part):,} {name} queries" + (f" (left out: {reasons})" if reasons else ""))
        return ", ".join(parts) + f", {self.train.n_items:,} candidates"


@dataclass(frozen=True, kw_only=True)
class ByTime(Checked):
    """Two cut-offs in time, by shares of the events."""

    valid: Fraction = 0.1
    """Share of events between the cut-offs."""
    test: Fraction = 0.1
    """Share of events after the second cut-off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.test > 0 and self.valid + self.test < 1):
            raise InputError(f"test must be above 0 and valid + test below 1, got {self.valid} and {self.test}")

    def shares(self, log: Log) -> tuple[int, int]:
        """Times of two events, not interpolated: an event after a cut-off cannot move it by changing its time."""
        times = np.sort(log.times)
        later = (self.valid + self.test, self.test)
        first, second = (times[min(round(len(times) * (1 - share)), len(times) - 1)] for share in later)
        return int(first), int(second)


@dataclass(frozen=True, kw_only=True)
class GlobalTime(ByTime):
    """Two cut-offs in time. Training's users, items and filters are those of the events before the first."""

    cutoffs: tuple[int, int] | None = None
    """The two cut-offs in seconds since 1970, in place of shares."""
    min_item_events: Count = 1
    """Items with fewer training events are no candidates: later events of theirs count as cold."""
    min_user_events: Count = 1
    """Users with fewer training events are not trained on; they are still asked about."""
    targets: Targets = "all"
    """Which of a user's events in a period are asked about."""
    remove_seen: bool = False

    def split(self, log: Log) -> Split:
        first, second = self.cutoffs or self.shares(log)
        train = log.times < first
        items = np.bincount(log.items[train], minlength=log.n_items) >= self.min_item_events
        train &= items[log.items]
        train &= (np.bincount(log.users[train], minlength=log.n_users) >= self.min_user_events)[log.users]
        counts = np.bincount(log.items[train], minlength=log.n_items)  # without the users who left
        valid, test = (log.times >= first) & (log.times < second), log.times >= second
        parts = (train, valid, test)
        return _divide(log, "global-time", parts, counts > 0, remove_seen=self.remove_seen, targets=self.targets)


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut:
    """Each user's last event tests, the one before validates; users with less than three only train."""

    remove_seen: bool = True

    def split(self, log: Log) -> Split:
        from_end = np.repeat(log.offsets[1:], log.lengths) - np.arange(log.n_events)  # 1 is the last event
        held = np.repeat(log.lengths >= 3, log.lengths)
        valid, test = held & (from_end == 2), held & (from_end == 1)
        every = np.ones(log.n_items, dtype=bool)
        train = ~(valid | test)
        return _divide(log, "leave-one-out", (train, valid, test), every, remove_seen=self.remove_seen)


@dataclass(frozen=True, kw_only=True)
class Paper(ByTime):
    """The paper's: users with at least 40 events, 70/15/15 by quantiles of time, every test event a query.

    The filter and the candidates (all items) come from the whole log: this protocol knows their future.
    """

    min_user_events: Count = 40
    valid: Fraction = 0.15
    test: Fraction = 0.15
    remove_seen: bool = False

    def split(self, log: Log) -> Split:
        log = log.with_min_user_events(self.min_user_events)
        first, second = self.shares(log)
        train, test = log.times < first, log.times >= second
        every = np.ones(log.n_items, dtype=bool)
        valid = ~(train | test)
        return _divide(log, "paper", (train, valid, test), every, remove_seen=self.remove_seen)


@dataclass(frozen=True, kw_only=True)
class All:
    """Every event trains and nothing is asked about: for the model that answers live."""

    remove_seen: bool = False

    def split(self, log: Log) -> Split:
        nothing = no_queries(log.n_items, remove_seen=self.remove_seen)
        return Split(protocol="all", log=log, train=log, valid=nothing, test=nothing)


Protocol = GlobalTime | LeaveOneOut | Paper | All
PROTOCOLS: Registry[type[Protocol]] = Registry(
    "protocol",
    {
        "global-time": "prism.recommend.data.splits:GlobalTime",
        "leave-one-out": "prism.recommend.data.splits:LeaveOneOut",
        "paper": "prism.recommend.data.splits:Paper",
        "all": "prism.recommend.data.splits:All",
    },
)


def split(log: Log, protocol: str | Protocol = "global-time") -> Split:
    """Divides a log by a protocol, given by its name or with options of its own."""
    return (PROTOCOLS[protocol]() if isinstance(protocol, str) else protocol).split(log)


def no_queries(candidates: int, *, remove_seen: bool) -> Queries:
    nobody = np.zeros(0, dtype=np.int64)
    return Queries(users=nobody, positions=nobody, candidates=candidates, remove_seen=remove_seen)


def _divide(
    log: Log,
    protocol: str,
    events: tuple[Mask, Mask, Mask],
    items: Mask,
    *,
    remove_seen: bool,
    targets: Targets = "all",
) -> Split:
    """Puts training's users and the candidate items first, then cuts train, validation and test."""
    train, *held = events
    if not train.any():
        remedy = "do all events share one time? then use leave-one-out"
        raise InputError(f"{log.name}: {protocol} leaves no event to train on; {remedy}")
    trained = np.bincount(log.users[train], minlength=log.n_users) > 0
    order = np.argsort(~trained, kind="stable")
    moved = concatenated_ranges(log.offsets[order], log.lengths[order])
    whole = log.recoded(users=order, items=np.argsort(~items, kind="stable"))
    parts = [queries_of(whole, mask[moved], int(items.sum()), remove_seen, targets) for mask in held]
    if not len(parts[1]):
        raise InputError(
            f"{log.name}: no test query under {protocol} ({parts[1].cold} cold, "
            f"{parts[1].no_history} without history, {parts[1].repeated} repeated): "
            "users need more events, or use another protocol"
        )
    known = np.arange(int(items.sum()))
    training = whole.where(train[moved]).recoded(users=np.arange(int(trained.sum())), items=known)
    return Split(protocol=protocol, log=whole, train=training, valid=parts[0], test=parts[1])


def queries_of(log: Log, asked: Mask, candidates: int, remove_seen: bool, targets: Targets) -> Queries:
    """Questions about the events asked for, but those whose item is no candidate or that nothing comes before."""
    events, users = np.flatnonzero(asked), log.users[asked]
    if targets != "all" and len(users):
        new = np.append(True, users[1:] != users[:-1])
        chosen = new if targets == "first" else np.append(new[1:], True)
        events, users = events[chosen], users[chosen]
    cold = log.items[events] >= candidates
    alone = ~cold & (events == log.offsets[users])
    again = ~(cold | alone) & _seen_before(log)[events] if remove_seen else np.zeros_like(cold)
    left = ~(cold | alone | again)
    return Queries(
        users=users[left],
        positions=events[left],
        candidates=candidates,
        remove_seen=remove_seen,
        cold=int(cold.sum()),
        no_history=int(alone.sum()),
        repeated=int(again.sum()),
    )


def _seen_before(log: Log) -> Mask:
    """[events]: whether the user took the item earlier."""
    _, first = np.unique(log.users * np.int64(log.n_items) + log.items, return_index=True)
    before = np.ones(log.n_events, dtype=bool)
    before[first] = False
    return before
