"""The probes: oracles written from the tasks' definitions are always right, constant answers get chance."""

import time
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest

from prism.errors import InputError
from prism.probes.tasks.base import CONTROL, DATA, NAMES, NOISE, PROBES, VALUES, VOCABULARY, WINDOW
from prism.probes.tasks.logic import SELECT_1, ModularAddition, Mux, Palindrome, Parity
from prism.probes.tasks.memory import NULL, ON, Mqar, PolyRecall, VariableTracking

NAMES_OF_ALL = list(PROBES)
SPARSE = [name for name in PROBES if PROBES[name].kind != "tracking" and PROBES[name]().fields == 1]  # words in noise


def at_the_end(labels: np.ndarray) -> np.ndarray:
    """The labels of the last token."""
    return labels if labels.ndim == 1 else labels[:, -1]


def after(row: list[int], *pattern: int) -> int:
    """The token that follows the first occurrence of a pattern."""
    n = len(pattern)
    return next(row[i + n] for i in range(len(row)) if tuple(row[i : i + n]) == pattern)


def follow(row: list[int]) -> int:
    name = row[-1]
    while name in NAMES:
        name = after(row, name)
    return name


def gated(row: list[int]) -> int:
    place = row.index(row[-1])
    return row[place + 1] if row[place - 1] == ON else NULL


def last_written(row: list[int]) -> int:
    return next(row[i + 1] for i in range(len(row) - 2, -1, -1) if row[i] == row[-1])


def in_role(row: list[list[int]]) -> int:
    key, role = row[-1][:2]
    found = next(token for token in row[:-1] if token[0] == key)
    return found[1 + role - CONTROL.start]


def arranged(points: int, even: bool) -> Callable[[list[int]], int]:
    """The arrangement of `points` things after a word, from permutation matrices."""
    elements = [p for p in permutations(range(points)) if not even or np.linalg.det(np.eye(points)[list(p)]) > 0]

    def oracle(row: list[int]) -> int:
        total = np.eye(points)
        for letter in row:
            total = np.eye(points)[list(elements[letter])] @ total
        return elements.index(tuple(total.argmax(1).tolist()))

    return oracle


# One row of tokens to its label, each from the paper's sentence about the task.
ORACLES = {
    "mqar": lambda row: after(row, row[-1]),
    "poly-recall": lambda row: after(row, row[-2], row[-1]),
    "variable-tracking": follow,
    "parity": lambda row: sum(t for t in row if t in DATA) % 2,
    "xor": lambda row: int(row[-3] % 2 != row[-2] % 2),
    "modular-addition": lambda row: (row[-3] + row[-2]) % 10,
    "palindrome": lambda row: int(row[-4] == row[-2]),
    "mux": lambda row: row[-2] if row[-4] == SELECT_1 else row[-3],
    "silence-gate": gated,
    "running-parity": lambda row: sum(row) % 2,
    "modular-counting": lambda row: sum(row) % 5,
    "s3": arranged(3, even=False),
    "s4": arranged(4, even=False),
    "a5": arranged(5, even=True),
    "s5": arranged(5, even=False),
    "last-write": last_written,
    "multi-value-recall": in_role,
}


@pytest.mark.parametrize("name", NAMES_OF_ALL)
def test_an_oracle_written_from_the_definition_is_always_right(name: str) -> None:
    for length in (PROBES[name]().shortest, 128):
        examples = PROBES[name](length=length).draw(500, seed=3)
        assert [ORACLES[name](row) for row in examples.tokens.tolist()] == at_the_end(examples.labels).tolist()


@pytest.mark.parametrize("name", NAMES_OF_ALL)
def test_a_guesser_gets_chance(name: str) -> None:
    probe, count = PROBES[name](), 20_000
    labels = at_the_end(probe.draw(count, seed=0).labels)
    guesses = at_the_end(probe.draw(count, seed=1).labels)[np.random.default_rng(0).permutation(count)]
    often = np.bincount(labels, minlength=VOCABULARY) / count
    spread = 4 * np.sqrt(probe.chance * (1 - probe.chance) / count)
    assert abs(often.max() - probe.chance) < spread + 0.002  # no constant answer beats it, and the best one gets it
    assert (guesses == labels).mean() < probe.chance + spread


@pytest.mark.parametrize(
    "name", [name for name in NAMES_OF_ALL if name != "mux"]
)  # a channel is its label half the time
def test_no_single_place_gives_the_label_away(name: str) -> None:
    probe = PROBES[name]()
    tokens, labels = probe.draw(20_000, seed=5)
    labels, words = at_the_end(labels), probe.vocabulary
    for column in tokens.reshape(len(tokens), -1).T:
        joint = np.bincount(column * words + labels, minlength=words**2)
        # the best guess of 20,000 is a little above chance where there are many labels
        assert joint.reshape(words, -1).max(1).sum() / len(labels) < probe.chance + 0.05


@pytest.mark.parametrize("name", NAMES_OF_ALL)
def test_examples_are_a_function_of_split_seed_and_batch(name: str) -> None:
    probe = PROBES[name]()
    same, again = probe.draw(64, seed=1, batch=2), probe.draw(64, seed=1, batch=2)
    assert (same.tokens == again.tokens).all()
    assert (same.labels == again.labels).all()
    seen = {row.tobytes() for row in same.tokens}
    assert len(seen) == 64
    for other in ({"seed": 2}, {"batch": 3}, {"split": "test"}):
        arguments = {"seed": 1, "batch": 2} | other
        assert not seen & {row.tobytes() for row in probe.draw(64, **arguments).tokens}


def test_the_vocabulary_is_data_control_and_noise_without_overlap() -> None:
    assert sorted([*DATA, *CONTROL, *NOISE]) == list(range(VOCABULARY))
    assert not set(NAMES) & set(VALUES)
    assert {*NAMES, *VALUES} == set(DATA)


@pytest.mark.parametrize("name", SPARSE)
def test_background_is_noise_and_answers_are_data_or_null(name: str) -> None:
    probe = PROBES[name]()
    tokens, labels = probe.draw(300, seed=7)
    assert tokens.min() >= 0
    assert tokens.max() < VOCABULARY
    assert (np.isin(tokens, NOISE).sum(1) == probe.length - probe.shortest).all()
    assert np.isin(labels, [*DATA, NULL]).all()
    assert (tokens[:, -1] < NOISE.start).all()  # the question is never noise


@pytest.mark.parametrize("name", ["xor", "parity", "modular-addition", "palindrome", "mux"])
def test_operands_of_logic_lie_inside_the_anchors_window(name: str) -> None:
    tokens = PROBES[name]().draw(300, seed=8).tokens
    assert np.isin(tokens[:, :-WINDOW], NOISE).all()


@pytest.mark.parametrize("name", ["s3", "s4", "a5", "s5", "running-parity", "modular-counting"])
def test_every_prefix_of_a_word_is_labelled_with_its_own_product(name: str) -> None:
    tokens, labels = PROBES[name]().draw(20, seed=6)
    for t in range(0, tokens.shape[1], 5):
        assert [ORACLES[name](row) for row in tokens[:, : t + 1].tolist()] == labels[:, t].tolist()


@pytest.mark.parametrize("name", ["s3", "s4", "a5", "s5", "running-parity", "modular-counting"])
def test_a_sign_begins_a_word_and_changes_nothing_else(name: str) -> None:
    probe = PROBES[name](sign=True)
    tokens, labels = probe.draw(20, seed=6)
    letters = probe.table().shape[1]
    assert (tokens[:, 0] == letters).all()
    assert (labels[:, 0] == 0).all()
    assert tokens[:, 1:].max() < letters < probe.vocabulary
    assert [ORACLES[name](row) for row in tokens[:, 1:].tolist()] == labels[:, -1].tolist()


@pytest.mark.parametrize("name", ["mqar", "poly-recall", "variable-tracking", "silence-gate", "last-write"])
def test_records_stand_everywhere(name: str) -> None:
    probe = PROBES[name]()
    often = (~np.isin(probe.draw(20_000, seed=9).tokens, NOISE)).mean(0)
    middle = often[4:-6]
    assert middle.max() < 1.4 * middle.min()


def test_a_chain_is_told_in_order() -> None:
    probe = VariableTracking()
    for row in probe.draw(300, seed=4).tokens.tolist():
        name, place = row[-1], len(row)
        while name in NAMES:
            found = row.index(name) if row.index(name) < len(row) - 1 else -1
            assert found < place  # each link refers to one told before it
            name, place = row[found + 1], found


def test_thousands_of_examples_take_milliseconds() -> None:
    for name in PROBES:
        began = time.perf_counter()
        PROBES[name]().draw(1000, seed=0)
        assert time.perf_counter() - began < 0.5, name  # some 15 ms on a free core


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mqar(pairs=17), "pairs must be at most 16"),
        (lambda: Mqar(length=8), "length must be at least 9, got 8"),
        (lambda: PolyRecall(keys=0), "keys must be at least 1, got 0"),
        (lambda: VariableTracking(chains=6), "chains · links must be at most 16"),
        (lambda: Parity(bits=5), "bits must be at most 4"),
        (lambda: ModularAddition(modulus=33), "modulus must be at most 32"),
        (lambda: Palindrome(symbols=1), "symbols must be at least 2, got 1"),
        (lambda: Mux(symbols=40), "symbols must be at most 32"),
        (lambda: Mqar().draw(0, seed=0), "count must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(make, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        make()
