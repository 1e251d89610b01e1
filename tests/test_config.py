"""Checks that configs share."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from prism.config import Checked, Count, Fraction, Natural, NotNegative, Positive, Seed, Share, count, most
from prism.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Every(Checked):
    steps: Count = 1
    warmup: Natural = 0
    rate: NotNegative = 0.0
    seed: Seed = 0
    clip: Positive = 1.0
    mix: Share = 1.0
    dropout: Fraction = 0.0
    rank: Count | None = None
    keys: Annotated[Count, most(4, "keys there are")] = 4
    loss: Literal["softmax", "bce"] = "softmax"
    start: Literal["random", "zero"] | None = None
    gated: bool = False
    timed: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Extended(Every):
    more: Count = 1


def test_a_config_takes_what_its_fields_types_take() -> None:
    Extended(steps=np.int64(3), warmup=10**400, clip=1e-300, mix=0, rank=7, start="zero", timed=True, more=2)
    Extended(seed=2**63 - 1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": True}, "steps must be a whole number, got True"),
        ({"steps": "2"}, "steps must be a whole number, got '2'"),
        ({"steps": None}, "steps must be a whole number, got None"),
        ({"steps": 2.5}, "steps must be a whole number, got 2.5"),
        ({"rank": 2.0}, "rank must be a whole number, got 2.0"),
        ({"rate": "fast"}, "rate must be a number, got 'fast'"),
        ({"rate": False}, "rate must be a number, got False"),
        ({"gated": "maybe"}, "gated must be true or false, got 'maybe'"),
        ({"gated": 1}, "gated must be true or false, got 1"),
        ({"timed": "no"}, "timed must be true or false, got 'no'"),
        ({"warmup": -1}, "warmup must be at least 0, got -1"),
        ({"seed": -1}, "seed must be in [0, 2**63), got -1"),
        ({"seed": 2**63}, "seed must be in [0, 2**63), got 9223372036854775808"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"rate": float("nan")}, "rate must be at least 0, got nan"),
        ({"clip": 0}, "clip must be above 0, got 0"),
        ({"mix": 1.5}, "mix must be in [0, 1], got 1.5"),
        ({"dropout": 1}, "dropout must be in [0, 1), got 1"),
        ({"rank": 0}, "rank must be at least 1, got 0"),
        ({"keys": 0}, "keys must be at least 1, got 0"),
        ({"keys": 5}, "keys must be at most 4 (keys there are), got 5"),
        ({"loss": "bcc"}, "loss must be one of softmax, bce; got 'bcc', did you mean 'bce'?"),
        ({"loss": None}, "loss must be one of softmax, bce; got None, known: softmax, bce"),
        ({"start": "ones"}, "start must be one of random, zero; got 'ones', known: random, zero"),
        ({"more": 0}, "more must be at least 1, got 0"),
    ],
)
def test_a_config_refuses_what_its_fields_types_do_not_take(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as refusal:
        Extended(**wrong)
    assert str(refusal.value) == says


def test_a_count_is_a_whole_number() -> None:
    assert count("k", 3) == count("k", np.int64(3)) == 3
    for wrong in (0, 2.5, 2.0, True, "3", None):
        with pytest.raises(InputError, match=f"k must be a whole number of at least 1, got {wrong!r}"):
            count("k", wrong)
