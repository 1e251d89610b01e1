"""A made-up log of any size: users walk among neighbouring items and jump now and then, some more than others."""

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


def _walk(rng: np.random.Generator, starts: np.ndarray, items: int, events: int, jump: float) -> np.ndarray:
    jumps = rng.random(events) < jump
    jumps[starts] = True
    popular = rng.permutation(items)[(items * rng.random(events) ** 3).astype(np.int64)]
    steps = np.cumsum(np.where(jumps, 0, rng.integers(1, 4, events)))
    latest = np.maximum.accumulate(np.where(jumps, np.arange(events), 0))
    walked: np.ndarray = (popular[latest] + steps - steps[latest]) % items
    return walked
