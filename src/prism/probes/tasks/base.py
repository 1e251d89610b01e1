"""Probing tasks, each a pure function of a seed: sequences of tokens, one label each, asked at the last token.

The paper's nine come first in `PROBES`; the others are ours (`tracking.py`, `writing.py`).

The vocabulary of 64 is split: data (operands, keys, values, labels), control (contexts, gates, selectors, the signs
that ask) and noise (whatever stands between). In the drawings, `.` is noise and `→` points at the label.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prism.config import Checked, Count, at_least, most, one_of
from prism.registry import Registry

VOCABULARY = 64
DATA = range(0, 32)
CONTROL = range(32, 48)
NOISE = range(48, 64)
# The data's two halves, where a task has names for things and things: no token is both.
NAMES, VALUES = DATA[:16], DATA[16:]
WINDOW = 5
"""The anchor's window: the operands of a logic task lie inside it, seen from the last token."""

Kind = Literal["memory", "logic", "control", "tracking"]
Split = Literal["train", "test"]
Ints = NDArray[np.int64]
Keys = Annotated[Count, most(len(NAMES), "keys there are")]


class Examples(NamedTuple):
    """One sequence per row, and its label."""

    tokens: Ints  # [examples, length], or [examples, length, fields] where a token is a set
    labels: Ints  # [examples], or [examples, length] where every token is asked about


@dataclass(frozen=True, kw_only=True)
class Probe(Checked, ABC):
    """One task: sequences and labels as a function of a seed."""

    length: int = 128
    """Tokens of a sequence."""

    kind: ClassVar[Kind]
    """What it asks of a model."""
    everywhere: ClassVar[bool] = False
    """Whether every token has a label, not the last alone; the accuracy is that at the last in any case."""
    longer: ClassVar[tuple[int, ...]] = ()
    """Multiples of the length at which it is tested as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("length", self.length, self.shortest)

    @property
    @abstractmethod
    def shortest(self) -> int:
        """Tokens that the task cannot do without."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """What the best constant answer gets."""

    @property
    def vocabulary(self) -> int:
        """Different tokens, and labels, that there can be."""
        return VOCABULARY

    @property
    def fields(self) -> int:
        """Members of a token, where it is a set."""
        return 1

    @abstractmethod
    def fill(self, tokens: Ints, rng: np.random.Generator) -> Ints:
        """Writes the task over the noise; returns the labels."""

    def draw(self, count: int, *, seed: int, split: Split = "train", batch: int = 0) -> Examples:
        """`count` examples; the same for the same arguments, others for any other split, seed or batch."""
        at_least("count", count, 1)
        one_of("split", split, Split)
        rng = np.random.default_rng((("train", "test").index(split), seed, batch))
        shape = (count, self.length) if self.fields == 1 else (count, self.length, self.fields)
        tokens = rng.integers(NOISE.start, NOISE.stop, shape)
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
        "running-parity": "prism.probes.tasks.tracking:RunningParity",
        "modular-counting": "prism.probes.tasks.tracking:ModularCounting",
        "s3": "prism.probes.tasks.tracking:WordsS3",
        "s4": "prism.probes.tasks.tracking:WordsS4",
        "a5": "prism.probes.tasks.tracking:WordsA5",
        "s5": "prism.probes.tasks.tracking:WordsS5",
        "last-write": "prism.probes.tasks.writing:LastWrite",
        "multi-value-recall": "prism.probes.tasks.writing:MultiValueRecall",
    },
)
PAPER_PROBES = tuple(PROBES)[:9]
"""The paper's; the others are ours."""


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
