"""What the simple experts remember of one user: a value of a few arrays, bounded by the user's distinct items."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prism.ops.cpu.compiling import loop

# Latest items that are remembered in order.
RECENT = 20
EVENTS, DISTINCT, LAST_TIME, LAST_SLOT, VISIT = range(5)
# Seconds without an event after which a visit is over.
VISIT_GAP = 1800
DAY, WEEK = 86_400, 604_800
PER_SLOT = ("items", "counts", "places", "times", "rhythm", "after")
# Share of the past that the habit of repeating keeps at each event.
HABIT_DECAY = 0.9


class UserState(NamedTuple):
    """Slot s < facts[DISTINCT] belongs to the distinct item items[s]; slots beyond are room to grow."""

    items: NDArray[np.int32]
    """[slots]: item codes, in the order in which they were first taken."""
    counts: NDArray[np.int32]
    """[slots]: how often."""
    places: NDArray[np.int64]
    """[slots]: events before the latest time it was taken."""
    times: NDArray[np.int64]
    """[slots]: when that was."""
    rhythm: NDArray[np.float64]
    """[slots, 4]: Σ cos, Σ sin of the time of day, and of the time of the week."""
    after: NDArray[np.int32]
    """[slots]: the slot of what followed it last time; -1: nothing yet."""
    recent: NDArray[np.int32]
    """[RECENT]: the latest items, latest first; -1 where there are fewer."""
    facts: NDArray[np.int64]
    """[5]: events, distinct items, time of the latest event, its slot (-1: none), events of the present visit."""
    habit: NDArray[np.float64]
    """[1]: the share of repeats, older events counting less and less."""

    def trimmed(self) -> "UserState":
        """Without the room to grow."""
        n = self.distinct
        return self._replace(**{name: getattr(self, name)[:n] for name in PER_SLOT})

    @property
    def distinct(self) -> int:
        """Distinct items so far."""
        return int(self.facts[DISTINCT])


def empty_state(slots: int = 16) -> UserState:
    """A user without events, with room for so many distinct items."""
    return UserState(
        items=np.zeros(slots, dtype=np.int32),
        counts=np.zeros(slots, dtype=np.int32),
        places=np.zeros(slots, dtype=np.int64),
        times=np.zeros(slots, dtype=np.int64),
        rhythm=np.zeros((slots, 4)),
        after=np.zeros(slots, dtype=np.int32),
        recent=np.full(RECENT, -1, dtype=np.int32),
        facts=np.array([0, 0, 0, -1, 0]),
        habit=np.zeros(1),
    )


def updated(state: UserState, item: int, when: int) -> UserState:
    """After one event; the arrays are changed in place, and grown where they are full."""
    slot = find(state, item)
    if slot < 0 and state.distinct == len(state.items):
        state = _grown(state)
    take(state, slot, item, when)
    return state


def state_after(items: NDArray[Any], times: NDArray[np.int64]) -> UserState:
    """After a whole history."""
    state = empty_state(max(16, len(np.unique(items))))
    _take_all(state, items.astype(np.int32), times)
    return state


def _grown(state: UserState) -> UserState:
    room = {name: np.zeros((16, *getattr(state, name).shape[1:]), getattr(state, name).dtype) for name in PER_SLOT}
    twice = {
        name: np.concatenate([getattr(state, name), np.zeros_like(getattr(state, name)), room[name]])
        for name in PER_SLOT
    }
    return state._replace(**twice)


@loop
def find(state, item):  # type: ignore[no-untyped-def]
    """The slot of an item; -1: it was never taken."""
    for s in range(state.facts[DISTINCT]):
        if state.items[s] == item:
            return s
    return -1


@loop
def take(state, slot, item, when):  # type: ignore[no-untyped-def]
    """Takes in one event of the item at `slot` (-1: of a new one); gives its slot."""
    facts = state.facts
    again = slot >= 0
    if not again:
        slot = facts[DISTINCT]
        facts[DISTINCT] += 1
        state.items[slot] = item
        state.counts[slot] = 0
        state.rhythm[slot] = 0
        state.after[slot] = -1
    if facts[EVENTS] > 0:
        state.after[facts[LAST_SLOT]] = slot
        state.habit[0] = HABIT_DECAY * state.habit[0] + (1 - HABIT_DECAY) * again
    state.counts[slot] += 1
    state.places[slot] = facts[EVENTS]
    state.times[slot] = when
    day, week = 2 * np.pi * (when % DAY) / DAY, 2 * np.pi * (when % WEEK) / WEEK
    state.rhythm[slot, 0] += np.cos(day)
    state.rhythm[slot, 1] += np.sin(day)
    state.rhythm[slot, 2] += np.cos(week)
    state.rhythm[slot, 3] += np.sin(week)
    state.recent[1:] = state.recent[:-1].copy()
    state.recent[0] = item
    goes_on = facts[EVENTS] > 0 and when - facts[LAST_TIME] <= VISIT_GAP
    facts[VISIT] = facts[VISIT] + 1 if goes_on else 1
    facts[EVENTS] += 1
    facts[LAST_TIME] = when
    facts[LAST_SLOT] = slot
    return slot


@loop
def _take_all(state, items, times):  # type: ignore[no-untyped-def]
    top = 0
    for n in range(len(items)):
        top = max(top, items[n] + 1)
    slots = np.full(top, -1, dtype=np.int32)
    for n in range(len(items)):
        slots[items[n]] = take(state, slots[items[n]], items[n], times[n])
