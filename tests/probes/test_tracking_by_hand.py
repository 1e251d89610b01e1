"""State tracking by hand: a permutation of n things is at most n − 1 reflections, and the operator makes them."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from prism.ops import delta_rule
from prism.probes.tasks.base import PROBES, Examples


def reflections(arrangement: tuple[int, ...]) -> list[Tensor]:
    """Unit keys k¹, k², … with Π (I − 2 k kᵀ) the matrix that puts thing x[j] in place j."""
    left, found = list(arrangement), []
    for place in range(len(left)):
        other = left.index(place)
        if other != place:
            left[place], left[other] = left[other], left[place]
            key = torch.zeros(len(left), dtype=torch.float64)
            key[place], key[other] = 0.5**0.5, -(0.5**0.5)
            found.insert(0, key)
    return found


def tracked(examples: Examples, points: int, *, even: bool, strength: float, backend: str) -> np.ndarray:
    """What is read after each token, as numbers of arrangements; head h asks for the thing in place h."""
    every = [p for p in permutations(range(points)) if not even or torch.linalg.det(torch.eye(points)[list(p)]) > 0]
    B, T = examples.tokens.shape
    k = torch.zeros(len(every), points - 1, points, dtype=torch.float64)
    erase = torch.zeros(len(every), points - 1, dtype=torch.float64)
    for n, arrangement in enumerate(every):
        for l, key in enumerate(reflections(arrangement)):
            k[n, l], erase[n, l] = key, strength
    letters = torch.from_numpy(examples.tokens)
    k = k[letters][:, :, None].expand(B, T, points, points - 1, points)
    erase = erase[letters][:, :, None].expand(B, T, points, points - 1)
    q = torch.eye(points, dtype=torch.float64).expand(B, T, points, points)
    start = torch.eye(points).expand(B, points, points, points)
    zero = torch.zeros_like(k)
    o, _ = delta_rule(q, k, zero, zero[..., 0], erase=erase, initial_state=start, backend=backend)  # type: ignore[arg-type]
    number = {arrangement: n for n, arrangement in enumerate(every)}
    return np.array([[number.get(tuple(things), -1) for things in row] for row in o.argmax(-1).tolist()])


@pytest.mark.parametrize("backend", ["chunk", "cpu"])
@pytest.mark.parametrize(
    ("task", "points", "even"), [("s3", 3, False), ("s4", 4, False), ("a5", 5, True), ("s5", 5, False)]
)
def test_reflections_along_each_direction_track_a_group_for_as_long_as_one_likes(
    task: str, points: int, even: bool, backend: str
) -> None:
    examples = PROBES[task](length=512).draw(4, seed=0, split="test")
    assert (tracked(examples, points, even=even, strength=2.0, backend=backend) == examples.labels).all()


def test_erasures_of_at_most_one_do_not() -> None:
    """The same keys with ε = 1: every letter that moves a thing forgets, and nothing comes back."""
    examples = PROBES["s3"](length=64).draw(16, seed=0, split="test")
    found = tracked(examples, 3, even=False, strength=1.0, backend="chunk")
    assert (found[:, -1] == examples.labels[:, -1]).mean() < 0.5
