"""Made-up logs: one of any size whose users walk among neighbouring items, and four that each have one habit.

`repeat_log`: people go to their own few places again and again, by the hour. `markov_log`: what comes next depends on
the latest item alone. `kinds_log`: on its kind alone. `basket_log`: several items at one moment, of one subject.
Functions of a seed.
"""

from dataclasses import replace

import numpy as np

from prism.config import at_least
from prism.errors import InputError
from prism.recommend.data.log import Log


def synthetic_log(users: int, items: int, events: int, seed: int = 0, *, jump: float = 0.2) -> Log:
    """Exactly as many users (two events each at least), items (each taken) and events as asked for.

    A step goes to an item at most 3 codes on; a jump, with probability `jump`, to a popular item anywhere.
    """
    at_least("users", users, 2)
    at_least("items", items, 2)
    if events < max(2 * users, items):
        raise InputError(f"events must be at least max(2 * users, items) = {max(2 * users, items)}, got {events}")
    rng = np.random.default_rng(seed)
    share = rng.lognormal(0.0, 1.0, users)
    extra = rng.multinomial(events - 2 * users, share / share.sum())
    offsets = np.concatenate([[0], np.cumsum(extra + 2)])
    taken = _walk(rng, offsets[:-1], items, events, jump)
    taken[rng.permutation(events)[:items]] = rng.permutation(items)  # so that no item is missing
    start = np.repeat(rng.integers(1_200_000_000, 1_300_000_000, users), extra + 2)
    gaps = np.cumsum(rng.exponential(50_000.0, events).astype(np.int64))
    return Log(
        offsets=offsets,
        items=taken.astype(np.int32),
        times=start + gaps - np.repeat(gaps[offsets[:-1]], extra + 2),
        user_ids=np.arange(users),
        item_ids=np.arange(items),
        name=f"synthetic-{users}x{items}x{events}",
    )


def walk_log(users: int = 2245, items: int = 33_000, events: int = 220_000, seed: int = 0) -> Log:
    """`synthetic_log` with many items and few events of each, as shops have them."""
    return replace(synthetic_log(users, items, events, seed), name="synthetic-walk")


def _walk(rng: np.random.Generator, starts: np.ndarray, items: int, events: int, jump: float) -> np.ndarray:
    jumps = rng.random(events) < jump
    jumps[starts] = True
    popular = rng.permutation(items)[(items * rng.random(events) ** 3).astype(np.int64)]
    steps = np.cumsum(np.where(jumps, 0, rng.integers(1, 4, events)))
    latest = np.maximum.accumulate(np.where(jumps, np.arange(events), 0))
    walked: np.ndarray = (popular[latest] + steps - steps[latest]) % items
    return walked


def repeat_log(users: int = 1000, places: int = 5000, events: int = 120_000, seed: int = 0) -> Log:
    """Check-ins: own places by their share and hour, new ones ever more rarely, near the ones known."""
    rng = np.random.default_rng(seed)
    counts = 20 + rng.multinomial(events - 20 * users, rng.dirichlet(np.full(users, 1.5)))
    home = rng.integers(places, size=users)
    taken, times = [], []
    for user in range(users):
        known = [int(home[user])]
        share, hour = [1.0], [float(rng.uniform(0, 24))]
        now = int(rng.integers(1_300_000_000, 1_310_000_000))
        for _ in range(counts[user]):
            now += int(rng.exponential(30_000.0)) + 300
            if rng.random() < 1.5 / (3 + len(known)):
                # places are laid out along a line: a new one lies near a known one
                near = known[int(rng.integers(len(known)))] + rng.normal(0, 30)
                known.append(int(near) % places)
                share.append(float(rng.gamma(0.5)) + 0.02)
                hour.append(float(rng.uniform(0, 24)))
                taken.append(known[-1])
            else:
                away = 2 * np.pi * ((now / 3600) % 24 - np.array(hour)) / 24
                weight = np.array(share) * np.exp(1.5 * np.cos(away))
                taken.append(known[int(rng.choice(len(known), p=weight / weight.sum()))])
            times.append(now)
    return _log(counts, np.array(taken), np.array(times), "synthetic-repeats")


def markov_log(users: int = 2000, items: int = 3000, events: int = 120_000, seed: int = 0, *, jump: float = 0.3) -> Log:
    """Each item has eight successors of unequal shares; with probability `jump` a popular item comes instead."""
    rng = np.random.default_rng(seed)
    counts = 10 + rng.multinomial(events - 10 * users, rng.dirichlet(np.full(users, 2.0)))
    successors = rng.integers(items, size=(items, 8))
    share = np.cumsum(1 / np.arange(1, 9))
    following = np.searchsorted(share, rng.random(events) * share[-1])
    anywhere = rng.permutation(items)[(items * rng.random(events) ** 3).astype(np.int64)]
    jumps = rng.random(events) < jump
    jumps[np.cumsum(counts) - counts] = True
    taken = np.empty(events, dtype=np.int64)
    for t in range(events):
        taken[t] = anywhere[t] if jumps[t] else successors[taken[t - 1], following[t]]
    return _log(counts, taken, _times(rng, counts, 40_000.0), "synthetic-markov")


def kinds_log(users: int = 2000, items: int = 2000, events: int = 120_000, seed: int = 0, *, kinds: int = 40) -> Log:
    """The kind of the next item hangs on the kind of the latest one; which it is of its kind, on how popular it is."""
    rng = np.random.default_rng(seed)
    counts = 10 + rng.multinomial(events - 10 * users, rng.dirichlet(np.full(users, 2.0)))
    members = np.array_split(rng.permutation(items), kinds)
    liking = [np.cumsum(rng.dirichlet(np.full(len(one), 0.5))) for one in members]
    follows = np.cumsum(rng.dirichlet(np.full(kinds, 0.1), kinds), 1)
    begins = np.zeros(events, dtype=bool)
    begins[np.cumsum(counts) - counts] = True
    first, which, item = rng.integers(kinds, size=events), rng.random(events), rng.random(events)
    taken, kind = np.empty(events, dtype=np.int64), 0
    for t in range(events):
        kind = int(first[t]) if begins[t] else min(int(np.searchsorted(follows[kind], which[t])), kinds - 1)
        place = min(int(np.searchsorted(liking[kind], item[t])), len(members[kind]) - 1)
        taken[t] = members[kind][place]
    return _log(counts, taken, _times(rng, counts, 40_000.0), "synthetic-kinds")


def basket_log(users: int = 2000, items: int = 3000, events: int = 160_000, seed: int = 0) -> Log:
    """Visits of about eight items of one subject at one moment; a fifth of a basket are the customer's staples."""
    rng = np.random.default_rng(seed)
    subjects = 60
    subject_of = rng.integers(subjects, size=items)
    members = [np.flatnonzero(subject_of == n) for n in range(subjects)]
    liking = [rng.dirichlet(np.full(len(one), 0.3)) for one in members]
    counts = 16 + rng.multinomial(events - 16 * users, rng.dirichlet(np.full(users, 1.5)))
    taken, times = [], []
    for user in range(users):
        mine, staples = rng.integers(subjects, size=3), rng.integers(items, size=5)
        now, left = int(rng.integers(1_290_000_000, 1_310_000_000)), int(counts[user])
        while left:
            size = min(left, 1 + int(rng.poisson(7)))
            subject = int(mine[int(rng.integers(3))])
            size = min(size, len(members[subject]))
            own = rng.choice(members[subject], size, p=_floored(liking[subject]), replace=False)
            again = rng.random(size) < 0.2
            taken.append(np.where(again, rng.choice(staples, size), own))
            times.append(np.full(size, now))
            left -= size
            now += int(rng.exponential(1_000_000.0)) + 3600
    return _log(counts, np.concatenate(taken), np.concatenate(times), "synthetic-baskets")


def _floored(shares: np.ndarray) -> np.ndarray:
    """With no share at zero, so that any number of items can be drawn."""
    return (shares + 1e-6) / (shares + 1e-6).sum()


def _times(rng: np.random.Generator, counts: np.ndarray, gap: float) -> np.ndarray:
    """Of users who begin at times of their own and pause for `gap` seconds in the mean."""
    begin = np.repeat(rng.integers(1_200_000_000, 1_300_000_000, len(counts)), counts)
    passed = np.cumsum(rng.exponential(gap, counts.sum()).astype(np.int64))
    return begin + passed - np.repeat(passed[np.cumsum(counts) - counts], counts)


def _log(counts: np.ndarray, taken: np.ndarray, times: np.ndarray, name: str) -> Log:
    """Only items that somebody took have a code."""
    items, codes = np.unique(taken, return_inverse=True)
    return Log(
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        items=codes.astype(np.int32),
        times=times,
        user_ids=np.arange(len(counts)),
        item_ids=items,
        name=name,
    )
