"""What the simple experts remember of one user: a value of a few arrays.

All that is kept of every item ever taken is its code. The rest is kept of the latest MOST distinct items: so an event
costs the same after a hundred events and after a hundred thousand.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prism.ops.cpu.compiling import loop

# Latest items that are remembered in order.
RECENT = 20
# Distinct items whose counts and times are remembered: where there are more, the one taken longest ago makes room.
MOST = 512
# Slots by which a state grows. Not a share of what it has: many users of one age would then grow by much at one time.
STEP = 32
EVENTS, DISTINCT, LAST_TIME, LAST_SLOT, VISIT = range(5)
# Seconds without an event after which a visit is over.
VISIT_GAP = 1800
DAY, WEEK = 86_400, 604_800
PER_SLOT = ("items", "counts", "places", "times", "rhythm", "after")
# Share of the past that the habit of repeating keeps at each event.
HABIT_DECAY = 0.9


class UserState(NamedTuple):
    """Slot s < kept(state) belongs to the item items[s]; slots beyond are room to grow."""

    seen: NDArray[np.int32]
    """[room]: all items ever taken, in the order in which they first were: facts[DISTINCT] of them."""
    items: NDArray[np.int32]
    """[slots]: item codes."""
    counts: NDArray[np.int32]
    """[slots]: how often it was taken, since it has its slot."""
    places: NDArray[np.int32]
    """[slots]: events before the latest time it was taken."""
    times: NDArray[np.int64]
    """[slots]: when that was."""
    rhythm: NDArray[np.float32]
    """[slots, 4]: Σ cos, Σ sin of the time of day, and of the time of the week."""
    after: NDArray[np.int32]
    """[slots]: the item that followed it last time; -1: nothing yet."""
    recent: NDArray[np.int32]
    """[RECENT]: the latest items, latest first; -1 where there are fewer."""
    facts: NDArray[np.int64]
    """[5]: events, distinct items, time of the latest event, its slot (-1: none), events of the present visit."""
    habit: NDArray[np.float64]
    """[1]: the share of repeats, older events counting less and less."""

    def trimmed(self) -> "UserState":
        """Without the room to grow."""
        n = min(self.distinct, MOST)
        return self._replace(seen=self.taken, **{name: getattr(self, name)[:n] for name in PER_SLOT})

    @property
    def distinct(self) -> int:
        """Distinct items so far."""
        return int(self.facts[DISTINCT])

    @property
    def taken(self) -> NDArray[np.int32]:
        """The codes of all distinct items."""
        return self.seen[: self.facts[DISTINCT]]


def empty_state(room: int = STEP) -> UserState:
    """A user without events, with room for so many distinct items."""
    slots = min(room, MOST)
    return UserState(
        seen=np.zeros(room, dtype=np.int32),
        items=np.zeros(slots, dtype=np.int32),
        counts=np.zeros(slots, dtype=np.int32),
        places=np.zeros(slots, dtype=np.int32),
        times=np.zeros(slots, dtype=np.int64),
        rhythm=np.zeros((slots, 4), dtype=np.float32),
        after=np.zeros(slots, dtype=np.int32),
        recent=np.full(RECENT, -1, dtype=np.int32),
        facts=np.array([0, 0, 0, -1, 0]),
        habit=np.zeros(1),
    )


def updated(state: UserState, item: int, when: int) -> UserState:
    """After one event; the arrays are changed in place, and grown where they are full."""
    slot, again = find(state, item)
    if not again:
        state = _with_room(state)
    take(state, slot, again, item, when)
    return state


def state_after(items: NDArray[Any], times: NDArray[np.int64]) -> UserState:
    """After a whole history."""
    state = empty_state(max(STEP, len(np.unique(items))))
    _take_all(state, items.astype(np.int32), times)
    return state


def states_along(items: NDArray[Any], times: NDArray[np.int64], every: int) -> list[UserState]:
    """After the first `every` events of a history, after twice as many, …; they share what they all have seen."""
    state, along = empty_state(max(STEP, len(np.unique(items)))), []
    for end in range(every, len(items), every):
        _take_all(state, items[end - every : end].astype(np.int32), times[end - every : end])
        own = {name: getattr(state, name).copy() for name in (*PER_SLOT, "recent", "facts", "habit")}
        along.append(state._replace(**own).trimmed())
    return along


def _with_room(state: UserState) -> UserState:
    """With room for one more distinct item; where there is none, for a few more: little is held in vain."""
    n = state.distinct
    grown = {name: min(n + STEP, MOST) for name in PER_SLOT} if n == len(state.items) < MOST else {}
    if n == len(state.seen):
        grown["seen"] = n + max(STEP, n // 16)
    return state._replace(**{name: _grown(getattr(state, name), size) for name, size in grown.items()})


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    larger = np.zeros((size, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


@loop
def kept(state):  # type: ignore[no-untyped-def]
    """Slots in use."""
    return min(state.facts[DISTINCT], MOST)


@loop
def find(state, item):  # type: ignore[no-untyped-def]
    """(the item's slot, -1 if it has none; whether it was ever taken)."""
    for s in range(kept(state)):
        if state.items[s] == item:
            return s, True
    for n in range(state.facts[DISTINCT] if state.facts[DISTINCT] > MOST else 0):
        if state.seen[n] == item:
            return -1, True
    return -1, False


@loop
def find_by(slots, state, item):  # type: ignore[no-untyped-def]
    """`find`, from slots [items]: the slot that each item was last given, -1 if it was never taken."""
    slot = slots[item]
    return (slot if slot >= 0 and state.items[slot] == item else -1), slot >= 0


@loop
def _free_slot(state):  # type: ignore[no-untyped-def]
    """A slot for an item without one: unused, or that of the item taken longest ago."""
    if state.facts[DISTINCT] < MOST:
        return state.facts[DISTINCT]
    return np.argmin(state.places[:MOST])


@loop
def take(state, slot, again, item, when):  # type: ignore[no-untyped-def]
    """Takes in one event of an item, which `find` has found at `slot` (-1: nowhere) and `again`; gives its slot."""
    facts = state.facts
    if slot < 0:
        slot = _free_slot(state)
        state.items[slot] = item
        state.counts[slot] = 0
        state.rhythm[slot] = 0
        state.after[slot] = -1
    if not again:
        state.seen[facts[DISTINCT]] = item
        facts[DISTINCT] += 1
    if facts[EVENTS] > 0:
        state.after[facts[LAST_SLOT]] = item
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
def forget(state, slots):  # type: ignore[no-untyped-def]
    """Back to a user without events."""
    for n in range(state.facts[DISTINCT]):
        slots[state.seen[n]] = -1
    state.facts[:] = 0
    state.facts[LAST_SLOT] = -1
    state.recent[:] = -1
    state.habit[:] = 0


@loop
def restore(state, slots, saved):  # type: ignore[no-untyped-def]
    """Back to what was saved, of the same user or of another, in memory with room for it."""
    forget(state, slots)
    distinct, n = saved.facts[DISTINCT], kept(saved)
    state.seen[:distinct] = saved.seen[:distinct]
    state.items[:n] = saved.items[:n]
    state.counts[:n] = saved.counts[:n]
    state.places[:n] = saved.places[:n]
    state.times[:n] = saved.times[:n]
    state.rhythm[:n] = saved.rhythm[:n]
    state.after[:n] = saved.after[:n]
    state.recent[:] = saved.recent
    state.facts[:] = saved.facts
    state.habit[:] = saved.habit
    _assign(state, slots)


@loop
def _assign(state, slots):  # type: ignore[no-untyped-def]
    """What `find_by` looks at: the slot of each item that has one, and that of another for those that had one once."""
    for n in range(state.facts[DISTINCT]):
        slots[state.seen[n]] = 0
    for slot in range(kept(state)):
        slots[state.items[slot]] = slot


@loop
def _take_all(state, items, times):  # type: ignore[no-untyped-def]
    top = 0
    for n in range(len(items)):
        top = max(top, items[n] + 1)
    for n in range(state.facts[DISTINCT]):
        top = max(top, state.seen[n] + 1)
    slots = np.full(top, -1, dtype=np.int32)
    _assign(state, slots)
    for n in range(len(items)):
        slot, again = find_by(slots, state, items[n])
        slots[items[n]] = take(state, slot, again, items[n], times[n])
