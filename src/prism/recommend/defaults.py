"""What `prism fit` chooses by itself: facts about a log, and one rule for each option that was left open."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from prism.recommend.data.splits import Split
from prism.recommend.model.experts import EXPERTS


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the rules look at, all of it from training events and the protocol."""

    events: int
    users: int
    items: int
    longest: int
    """Events of the longest history."""
    usual: float
    """Events of a history at the 90th percentile."""
    repeats: float
    """Share of events whose item the user had taken before."""
    ties: float
    """Share of events at the very time of the user's event before."""
    days: float
    """Between the first event and the last."""
    removes_seen: bool
    """Whether the protocol asks only for items that the user has not taken."""


def facts_of(split: Split) -> Facts:
    """Of a divided log."""
    train = split.train
    follows = np.ones(train.n_events, dtype=bool)
    follows[train.offsets[:-1][train.lengths > 0]] = False
    after = np.flatnonzero(follows)
    key = train.users * np.int64(train.n_items) + train.items
    distinct = len(np.unique(key))
    return Facts(
        events=train.n_events,
        users=train.n_users,
        items=train.n_items,
        longest=int(train.lengths.max(initial=0)),
        usual=float(np.percentile(train.lengths, 90)),
        repeats=1 - distinct / max(train.n_events, 1),
        ties=float((train.times[after] == train.times[after - 1]).mean()) if len(after) else 0.0,
        days=float(np.ptp(train.times)) / 86_400 if train.n_events else 0.0,
        removes_seen=split.test.remove_seen,
    )


@dataclass(frozen=True)
class Chosen:
    """One option that a rule set."""

    option: str
    value: Any
    reason: str

    def __str__(self) -> str:
        shown = " ".join(self.value) if isinstance(self.value, tuple) else self.value
        return f"{self.option} {shown}: {self.reason}"


# Above this, counting which items stand near each other takes more memory and time than it saves.
MANY_EVENTS = 10_000_000
# Events per item from which a model can be taught faster.
WELL_KNOWN = 20
# Above this the loss draws items instead of comparing all.
MANY_ITEMS = 60_000
# The other way to learn a small log on top of experts, which a rehearsal compares with what the rules choose.
BOLD = {"lr": 3e-3, "focus": 0.0}


@dataclass(frozen=True)
class Rules:
    """One method for each option, in the order in which they are told: (value, reason)."""

    of: Facts
    alone: bool = False
    """Whether the model has no experts to stand on."""

    def experts(self) -> tuple[tuple[str, ...], str]:
        if self.of.removes_seen:
            return EXPERTS[1:], "the protocol asks for items not taken before, so nothing is repeated"
        return EXPERTS, f"{self.of.repeats:.0%} of events repeat an item; the gates learn whom to believe"

    def time_gaps(self) -> tuple[bool, str]:
        return self._timed, "events have times" if self._timed else "all events share one time"

    def query_time(self) -> tuple[bool, str]:
        why = "a question has a time too" if self._timed else "all events share one time"
        return self._timed, f"{why}; {self.of.ties:.0%} of events share the time of the one before"

    def projection(self) -> tuple[bool, str]:
        if self.alone:
            return True, "what was just taken is seldom what comes next"
        return True, "the model starts from what the experts say, and learns what they leave"

    def start(self) -> tuple[str, str]:
        if self.of.events > MANY_EVENTS:
            return "random", f"{self.of.events:,} events teach the table soon enough"
        return "cooccurrence", "items that stand near each other in the log begin near each other"

    def length(self) -> tuple[int, str]:
        value = int(np.clip(10 * np.ceil(self.of.usual / 10), 20, 200 if self._large else 100))
        return value, f"nine of ten histories have at most {self.of.usual:.0f} events"

    def windows(self) -> tuple[str, str]:
        if self._large:
            return "last", "with this many events the latest of each history are enough for an epoch"
        return "all", "a small log is used whole"

    def batch(self) -> tuple[int, str]:
        value = int(np.clip(round(self._tokens / self._mean_window), 2, 64))
        return value, f"about {self._tokens:,} events per update, some hundred updates per epoch"

    def dim(self) -> tuple[int, str]:
        return (96 if self._large else 64), f"{self.of.events:,} training events"

    def layers(self) -> tuple[int, str]:
        return (2 if self._large else 1), f"{self.of.events:,} training events"

    def dropout(self) -> tuple[float, str]:
        return (0.2, "many events") if self._large else (0.3, "few events are soon learned by heart")

    def lr(self) -> tuple[float, str]:
        if self._large:
            return 4e-3, "many events"
        if self.alone:
            return 3e-3, f"suits updates of {self._tokens:,} events"
        each = self.of.events / max(self.of.items, 1)
        value = 1e-3 if each >= WELL_KNOWN else 5e-4
        return value, f"{each:.0f} events per item: learned faster, they are learned by heart"

    def loss(self) -> tuple[str, str]:
        if self.of.items > MANY_ITEMS:
            return "sampled", f"the exact softmax over {self.of.items:,} items would take most of the time"
        return "softmax", f"{self.of.items:,} items can be compared with each other at every event"

    def focus(self) -> tuple[float, str]:
        if self._large:
            return 0.0, "with this many events the model learns most from those that surprise"
        return 0.5, "an event counts by the root of its chance: what nobody could foresee should not shape a ranking"

    def rehearsal(self) -> tuple[bool, str]:
        if self.alone:
            return False, "there are no experts that a model could depart from"
        if self._large:
            return False, "with this many events the bold way is the one chosen"
        return True, "a bolder lr and focus are tried on validation, unless they are given"

    def epochs(self) -> tuple[int, str]:
        return (10 if self._large else 5), "at most; fewer if the minutes allow fewer"

    @property
    def _timed(self) -> bool:
        return self.of.days > 0

    @property
    def _large(self) -> bool:
        return self.of.events >= 500_000

    @property
    def _tokens(self) -> int:
        return int(np.clip(self.of.events // 400, 400, 3200))

    @cached_property
    def _mean_window(self) -> float:
        length, _ = self.length()
        return max(1.0, min(self.of.events / max(self.of.users, 1), length))


OPTIONS = (
    "experts", "time_gaps", "query_time", "projection", "start", "length", "windows", "batch", "dim", "layers",
    "dropout", "lr", "loss", "focus", "rehearsal", "epochs",
)  # fmt: skip


def choices(facts: Facts, alone: bool = False) -> dict[str, Chosen]:
    """What every rule says of a log, and of a model with experts or `alone`."""
    rules = Rules(facts, alone)
    return {name: Chosen(name, *getattr(rules, name)()) for name in OPTIONS}
