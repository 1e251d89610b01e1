"""Probes of state tracking: the product of all tokens so far, g_t = g_{t−1} · x_t, in a group; asked at every token.

A model learns at one length and is tested at 4 and 16 times that length too. What a recurrence can track is a matter of
its transition's eigenvalues and rank: parity needs one of −1; S3, S4 and A5 are rotations, each a product of two
reflections; words of A5 and S5 are beyond diagonal transitions, however deep, unless TC⁰ = NC¹.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Annotated, ClassVar

import numpy as np

from prism.config import least, most
from prism.probes.tasks.base import VOCABULARY, Ints, Probe


@dataclass(frozen=True, kw_only=True)
class Tracking(Probe):
    """Words of a group: one element per token, labelled with their product so far."""

    length: int = 32
    sign: bool = False
    """Whether the first token is a sign that a word begins, labelled with the identity: a place to write the first
    state, which a mixer that sees one token at a time cannot find otherwise."""

    kind = "tracking"
    everywhere: ClassVar[bool] = True
    longer: ClassVar[tuple[int, ...]] = (4, 16)

    @abstractmethod
    def table(self) -> Ints:
        """[states, letters]: the state after a letter; state 0 is the first."""

    @property
    def shortest(self) -> int:
        return 1 + self.sign

    @property
    def chance(self) -> float:
        return 1 / len(self.table())

    @property
    def vocabulary(self) -> int:
        states, letters = self.table().shape
        return max(VOCABULARY, states, letters + self.sign)

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        table = self.table()
        letters = table.shape[1]
        tokens[:] = rng.integers(letters, size=tokens.shape)
        labels, state = np.zeros_like(tokens), np.zeros(len(tokens), dtype=np.int64)
        if self.sign:
            tokens[:, 0] = letters
        for t in range(self.sign, tokens.shape[1]):
            state = table[state, tokens[:, t]]
            labels[:, t] = state
        return labels


@dataclass(frozen=True, kw_only=True)
class RunningParity(Tracking):
    """Running parity: whether the ones so far are odd in number.

    0 1 1 0 1 → 0 1 0 0 1
    """

    def table(self) -> Ints:
        return _cyclic(2, 2)


@dataclass(frozen=True, kw_only=True)
class ModularCounting(Tracking):
    """Counting: the number of ones so far, modulo 5.

    1 0 1 1 1 1 → 1 1 2 3 4 0
    """

    modulus: Annotated[int, least(2), most(VOCABULARY, "labels there are")] = 5
    """Where the count begins again."""

    def table(self) -> Ints:
        return _cyclic(self.modulus, 2)


@dataclass(frozen=True, kw_only=True)
class WordsS3(Tracking):
    """Words of S3: what 3 things are arranged as after all permutations so far."""

    def table(self) -> Ints:
        return _permutations(3, even=False)


@dataclass(frozen=True, kw_only=True)
class WordsS4(Tracking):
    """Words of S4: what 4 things are arranged as after all permutations so far."""

    def table(self) -> Ints:
        return _permutations(4, even=False)


@dataclass(frozen=True, kw_only=True)
class WordsA5(Tracking):
    """Words of A5: what 5 things are arranged as after all even permutations so far."""

    def table(self) -> Ints:
        return _permutations(5, even=True)


@dataclass(frozen=True, kw_only=True)
class WordsS5(Tracking):
    """Words of S5: what 5 things are arranged as after all permutations so far."""

    def table(self) -> Ints:
        return _permutations(5, even=False)


@cache
def _cyclic(states: int, letters: int) -> Ints:
    """Addition modulo `states`."""
    return (np.arange(states)[:, None] + np.arange(letters)) % states


@cache
def _permutations(points: int, *, even: bool) -> Ints:
    """Multiplication of permutations, all or the even ones; the identity is number 0."""
    elements = [p for p in permutations(range(points)) if not (even and _odd(p))]
    number = {p: n for n, p in enumerate(elements)}
    return np.array([[number[tuple(p[i] for i in x)] for x in elements] for p in elements])


def _odd(p: tuple[int, ...]) -> bool:
    """Whether an odd number of pairs stand in the wrong order."""
    return sum(a > b for i, a in enumerate(p) for b in p[i + 1 :]) % 2 == 1
