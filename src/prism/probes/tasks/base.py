"""The nine probing tasks, each a pure function of a seed: sequences of tokens, one label each, asked at the last token.

The vocabulary of 64 is split: data (operands, keys, values, labels), control (contexts, gates, selectors, the signs
that ask) and noise (whatever stands between). In the drawings, `.` is noise and `→` points at the label.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prism.config import at_least, one_of
from prism.errors import InputError
from prism.registry import Registry

VOCABULARY = 64
DATA = range(0, 32)
CONTROL = range(32, 48)
NOISE = range(48, 64)
# The data's two halves, where a task has names for things and things: no token is both.
NAMES, VALUES = DATA[:16], DATA[16:]
WINDOW = 5
"""The anchor's window: the operands of a logic task lie inside it, seen from the last token."""

Kind = Literal["memory", "logic", "control"]
Split = Literal["train", "test"]
Ints = NDArray[np.int64]


class Examples(NamedTuple):
    """One sequence a row, and its label."""

    tokens: Ints  # [examples, length]
    labels: Ints  # [examples]


@dataclass(frozen=True, kw_only=True)
class Probe(ABC):
    """One task."""

    length: int = 128
    """Tokens of a sequence."""

    kind: ClassVar[Kind]
    """What it asks of a model."""

    def __post_init__(self) -> None:
        at_least("length", self.length, self.shortest)

    @property
    @abstractmethod
    def shortest(self) -> int:
        """Tokens that the task cannot do without."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """What the best constant answer gets."""

    @abstractmethod
    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        """Writes the task over the noise; returns the labels."""

    def draw(self, count: int, *, seed: int, split: Split = "train", batch: int = 0) -> Examples:
        """`count` examples; the same for the same arguments, others for any other split, seed or batch."""
        at_least("count", count, 1)
        one_of("split", split, Split)
        rng = np.random.default_rng((("train", "test").index(split), seed, batch))
        tokens = rng.integers(NOISE.start, NOISE.stop, (count, self.length))
        return Examples(tokens, self.fill(tokens, rng))


PROBES: Registry[type[Probe]] = Registry(
    "probe",
    {
        "mqar": "prism.probes.tasks.memory:Mqar",
        "poly-recall": "prism.probes.tasks.memory:PolyRecall",
        "variable-tracking": "prism.probes.tasks.memory:VariableTracking",
        "parity": "prism.probes.tasks.logic:Parity",
        "xor": "prism.probes.tasks.logic:Xor",
        "modular-addition": "prism.probes.tasks.logic:ModularAddition",
        "palindrome": "prism.probes.tasks.logic:Palindrome",
        "mux": "prism.probes.tasks.logic:Mux",
        "silence-gate": "prism.probes.tasks.memory:SilenceGate",
    },
)


def at_most(name: str, value: int, most: int, what: str) -> None:
    """Refuses more of something than there is."""
    if value > most:
        raise InputError(f"{name} must be at most {most} ({what}), got {value}")


def distinct(rng: np.random.Generator, count: int, chosen: int, among: range) -> Ints:
    """[count, chosen]: different members of `among` in each row, in random order."""
    order: Ints = rng.random((count, len(among))).argsort(1)[:, :chosen] + among.start
    return order


def scatter(tokens: Ints, records: Ints, room: int, rng: np.random.Generator) -> None:
    """Writes `records` [examples, R, width] in their order, whole and apart, anywhere in the first `room` tokens."""
    count, R, width = records.shape
    free = room - R * (width - 1)  # each record shrunk to one place: any R of these will do
    first = np.sort(rng.random((count, free)).argsort(1)[:, :R], 1) + np.arange(R) * (width - 1)
    places = first[..., None] + np.arange(width)
    np.put_along_axis(tokens, places.reshape(count, -1), records.reshape(count, -1), 1)
