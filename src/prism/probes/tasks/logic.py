"""Probes of computation: a function of operands that stand inside the anchor's window, just before the sign that asks.

Nothing has to be remembered for long: a model that fails cannot compute, or cannot be trained to.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from prism.config import Count, least, most
from prism.probes.tasks.base import CONTROL, DATA, WINDOW, Ints, Probe

_XOR, _PARITY, _SUM, _PALINDROME, _MUX, SELECT_0, SELECT_1 = CONTROL[:7]
Symbols = Annotated[int, least(2), most(len(DATA), "data tokens there are")]


def _ask(tokens: Ints, *operands: Ints, sign: int) -> None:
    """The operands, then the sign that asks, at the end of every sequence."""
    n = len(operands)
    tokens[:, -n - 1 : -1] = np.stack(operands, 1)
    tokens[:, -1] = sign


@dataclass(frozen=True, kw_only=True)
class Xor(Probe):
    """Whether exactly one of two numbers is odd.

    . . . . . . . . . 5 8 XOR → 1
    """

    kind = "logic"
    shortest = 3
    chance = 0.5

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        a, b = rng.integers(DATA.start, DATA.stop, (2, len(tokens)))
        _ask(tokens, a, b, sign=_XOR)
        return (a + b) % 2


@dataclass(frozen=True, kw_only=True)
class Parity(Probe):
    """Whether the number of ones is odd.

    . . . . . . . . 1 1 1 PARITY → 1
    """

    bits: Annotated[Count, most(WINDOW - 1, "the anchor's window less the sign")] = 3
    """Bits; with the sign that asks, they fill the anchor's window at most."""

    kind = "logic"
    chance = 0.5

    @property
    def shortest(self) -> int:
        return self.bits + 1

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        bits = rng.integers(2, size=(self.bits, len(tokens)))
        _ask(tokens, *bits, sign=_PARITY)
        return bits.sum(0) % 2


@dataclass(frozen=True, kw_only=True)
class _OfSymbols(Probe):
    """Three tokens and a sign; an operand is one of so many symbols."""

    symbols: Symbols = 10
    """Symbols there are."""
    shortest = 4


@dataclass(frozen=True, kw_only=True)
class ModularAddition(Probe):
    """The sum of two digits, without its carry.

    . . . . . . . . . 8 4 SUM → 2
    """

    modulus: Symbols = 10
    """Digits there are."""

    kind = "logic"
    shortest = 3

    @property
    def chance(self) -> float:
        return 1 / self.modulus

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        a, b = rng.integers(self.modulus, size=(2, len(tokens)))
        _ask(tokens, a, b, sign=_SUM)
        return (a + b) % self.modulus


@dataclass(frozen=True, kw_only=True)
class Palindrome(_OfSymbols):
    """Whether the first and the last of three symbols are the same: half of them are.

    . . . . . . . . 4 9 4 PALINDROME → 1
    """

    kind = "logic"
    chance = 0.5

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        a, b = rng.integers(self.symbols, size=(2, len(tokens)))
        apart = rng.integers(1, self.symbols, size=len(tokens))
        same = rng.integers(2, size=len(tokens))
        _ask(tokens, a, b, np.where(same, a, (a + apart) % self.symbols), sign=_PALINDROME)
        return same


@dataclass(frozen=True, kw_only=True)
class Mux(_OfSymbols):
    """The channel that the selector names.

    . . . . . . . SELECT_1 3 8 MUX → 8
    """

    kind = "control"

    @property
    def chance(self) -> float:
        return 1 / self.symbols

    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        first, second = rng.integers(self.symbols, size=(2, len(tokens)))
        chosen = rng.integers(2, size=len(tokens))
        _ask(tokens, np.where(chosen, SELECT_1, SELECT_0), first, second, sign=_MUX)
        return np.where(chosen, second, first)
