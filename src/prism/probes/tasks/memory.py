"""Probes of memory and of its gate: recall of pairs, of pairs in a context, along a chain, and of what was let in."""

from dataclasses import dataclass

import numpy as np

from prism.config import Count, most
from prism.probes.tasks.base import CONTROL, NAMES, VALUES, Ints, Keys, Probe, distinct, scatter

ON, OFF, NULL, *CONTEXTS = CONTROL


class _Recall(Probe):
    """Which of the values it was."""

    kind = "memory"
    chance = 1 / len(VALUES)


@dataclass(frozen=True, kw_only=True)
class Mqar(_Recall):
    """Recall: the value that followed this key.

    Pairs of a key and a value among noise; the last token is one of the keys.

        . . 3 21 . . . . 7 30 . 11 16 . . . 5 24 . . 7 → 30
    """

    pairs: Keys = 4
    """Pairs to remember, their keys all different."""

    @property
    def shortest(self) -> int:
        return 2 * self.pairs + 1

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        count = len(tokens)
        keys = distinct(rng, count, self.pairs, NAMES)
        values = rng.integers(VALUES.start, VALUES.stop, (count, self.pairs))
        scatter(tokens, np.stack([keys, values], 2), self.length - 1, rng)
        rows, asked = np.arange(count), rng.integers(self.pairs, size=count)
        tokens[:, -1] = keys[rows, asked]
        return values[rows, asked]


@dataclass(frozen=True, kw_only=True)
class PolyRecall(_Recall):
    """Recall in context: the value that followed this key after this sign.

    Each key stands once after each of two signs, with a value for each; the last two tokens are a sign and a key.

        . A 5 24 . . B 5 17 . . . B 9 30 . . A 9 19 . . B 5 → 17
    """

    keys: Keys = 2
    """Different keys, each in both contexts."""

    @property
    def shortest(self) -> int:
        return 6 * self.keys + 2

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        count, rows = len(tokens), np.arange(len(tokens))
        keys = distinct(rng, count, self.keys, NAMES).repeat(2, 1)
        contexts = np.tile(np.array(CONTEXTS[:2]), (count, self.keys))
        values = rng.integers(VALUES.start, VALUES.stop, keys.shape)
        records = rng.permuted(np.arange(2 * self.keys)[None].repeat(count, 0), axis=1)
        scatter(tokens, np.stack([contexts, keys, values], 2)[rows[:, None], records], self.length - 2, rng)
        asked = rng.integers(2 * self.keys, size=count)
        tokens[:, -2], tokens[:, -1] = contexts[rows, asked], keys[rows, asked]
        return values[rows, asked]


@dataclass(frozen=True, kw_only=True)
class VariableTracking(_Recall):
    """Pointers: the value at the end of this chain.

    Chains `a = value`, `b = a`, `c = b`, each link a pair in this order, the chains' links mixed; the last token is the
    end of one. Naming any of the values shown gets 1 / chains.

        . 3 21 . . 8 30 . 5 3 . . . 9 8 . 12 5 . . 14 9 . . 12 → 21
    """

    chains: Count = 3
    """Chains: with one alone, its value would be the only one in sight."""
    links: Count = 3
    """Pairs of a chain."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most(len(NAMES), "names there are").check("chains · links", self.chains * self.links)

    @property
    def shortest(self) -> int:
        return 2 * self.chains * self.links + 1

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        count, rows = len(tokens), np.arange(len(tokens))
        names = distinct(rng, count, self.chains * self.links, NAMES).reshape(count, self.chains, self.links)
        values = distinct(rng, count, self.chains, VALUES)
        targets = np.concatenate([values[..., None], names[..., :-1]], 2)
        pairs = np.stack([names, targets], 3).reshape(count, -1, 2)
        # a random order of all links in which each chain keeps its own: sort the draws of a chain among themselves
        when = np.sort(rng.random((count, self.chains, self.links)), 2).reshape(count, -1).argsort(1)
        scatter(tokens, pairs[rows[:, None], when], self.length - 1, rng)
        asked = rng.integers(self.chains, size=count)
        tokens[:, -1] = names[rows, asked, -1]
        return values[rows, asked]


@dataclass(frozen=True, kw_only=True)
class SilenceGate(Probe):
    """A gated write: the value that followed this key if the gate was on, else NULL.

    Half the gates are off. The paper's algorithm prints the key as the target, its table the value: this is the table.

        . . . ON 5 24 . . . . . . 5 → 24        . . OFF 5 24 . . . . . . . 5 → NULL
    """

    kind = "control"
    shortest = 4
    chance = 0.5

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        count = len(tokens)
        keys = rng.integers(NAMES.start, NAMES.stop, count)
        values = rng.integers(VALUES.start, VALUES.stop, count)
        on = rng.random(count) < 0.5
        gates = np.where(on, ON, OFF)
        scatter(tokens, np.stack([gates, keys, values], 1)[:, None], self.length - 1, rng)
        tokens[:, -1] = keys
        return np.where(on, values, NULL)
