"""Probes of the write: a key that is written again, and a token that carries several facts."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from prism.config import Count, most
from prism.probes.tasks.base import CONTROL, NAMES, VALUES, VOCABULARY, Ints, Keys, Probe, distinct, scatter


@dataclass(frozen=True, kw_only=True)
class LastWrite(Probe):
    """Overwriting: the value that followed this key last.

    Each key stands several times, with another value each time; the last token is one of the keys. Naming any of its
    values gets 1 / writes.

        . 3 21 . 7 30 . . 3 18 . . 7 25 . . 3 → 18
    """

    keys: Keys = 4
    """Different keys."""
    writes: Annotated[Count, most(len(VALUES), "values there are")] = 3
    """Values that each key has had."""

    kind = "memory"
    chance = 1 / len(VALUES)

    @property
    def shortest(self) -> int:
        return 2 * self.keys * self.writes + 1

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        count, rows = len(tokens), np.arange(len(tokens))
        keys = distinct(rng, count, self.keys, NAMES)
        values = np.stack([distinct(rng, count, self.writes, VALUES) for _ in range(self.keys)], 1)
        order = rng.permuted(np.tile(np.arange(self.keys).repeat(self.writes), (count, 1)), axis=1)
        records = np.empty((count, self.keys * self.writes, 2), dtype=np.int64)
        records[..., 0] = np.take_along_axis(keys, order, 1)
        for key in range(self.keys):
            records[order == key, 1] = values[:, key].ravel()
        scatter(tokens, records, self.length - 1, rng)
        asked = rng.integers(self.keys, size=count)
        tokens[:, -1] = keys[rows, asked]
        return values[rows, asked, -1]


@dataclass(frozen=True, kw_only=True)
class MultiValueRecall(Probe):
    """Several facts per token: the value that this key has in this role.

    A token is a set: a key together with one value for each role, or noise; the last one is a key and a role. Each
    value belongs to one role only, so that the set says which is which.

        . {3 a21 b40} . . {7 a30 b33} . . {3 b} → b40
    """

    pairs: Keys = 4
    """Keys to remember, all different."""
    roles: Annotated[Count, most(len(CONTROL), "signs there are")] = 2
    """Values of each key."""

    kind = "memory"

    @property
    def shortest(self) -> int:
        return self.pairs + 1

    @property
    def chance(self) -> float:
        return 1 / (self.roles * len(VALUES))

    @property
    def vocabulary(self) -> int:
        return VOCABULARY + self.roles * len(VALUES)

    @property
    def fields(self) -> int:
        return 1 + self.roles

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        count, rows, width = len(tokens), np.arange(len(tokens)), len(VALUES)
        keys = distinct(rng, count, self.pairs, NAMES)
        role = np.arange(self.roles)
        values = VOCABULARY + role * width + rng.integers(width, size=(count, self.pairs, self.roles))
        places = np.sort(rng.random((count, self.length - 1)).argsort(1)[:, : self.pairs], 1)
        tokens[rows[:, None], places] = np.concatenate([keys[..., None], values], 2)
        asked, wanted = rng.integers(self.pairs, size=count), rng.integers(self.roles, size=count)
        tokens[:, -1, 0], tokens[:, -1, 1] = keys[rows, asked], CONTROL.start + wanted
        return values[rows, asked, wanted]
