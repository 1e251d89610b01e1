"""State tracking in three dimensions: S3, S4 and A5 are groups of rotations, and two reflections make any rotation."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from prism.ops import delta_rule
from prism.probes.tasks.base import PROBES, Ints


def rotation(axis: Tensor, angle: float) -> Tensor:
    """The matrix that turns by `angle` about a unit axis."""
    x, y, z = axis.tolist()
    cross = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
    return torch.matrix_exp(angle * cross)


def two_reflections(turn: Tensor) -> Tensor:
    """[2, 3]: unit keys with (I − 2 k¹ k¹ᵀ)(I − 2 k² k²ᵀ) this rotation."""
    values, vectors = torch.linalg.eig(turn)
    axis = vectors[:, (values - 1).abs().argmin()].real
    axis = axis / axis.norm()
    first = torch.linalg.cross(axis, torch.eye(3, dtype=torch.float64)[axis.abs().argmin()])
    first = first / first.norm()
    angle = math.atan2(float(torch.linalg.cross(first, turn @ first) @ axis), float(first @ turn @ first))
    return torch.stack([rotation(axis, angle / 2) @ first, first])


def rotations(table: Ints, order: int) -> Tensor:
    """[elements, 3, 3]: the group as rotations: it has a, b with a² = b³ = (ab)^order = 1 that make all of it.

    So have the half turn about one axis and the third of a turn about another at the right angle to it.
    """
    n = len(table)
    orders = [_order(table, g) for g in range(n)]
    cosine = math.cos(math.pi / order) / math.sin(math.pi / 3)
    A = rotation(torch.tensor([0.0, 0, 1], dtype=torch.float64), math.pi)
    tilted = torch.tensor([math.sqrt(1 - cosine**2), 0, cosine], dtype=torch.float64)
    B = rotation(tilted, 2 * math.pi / 3)
    for a, b in product(range(n), repeat=2):
        if (orders[a], orders[b], orders[table[a, b]]) == (2, 3, order):
            found = {0: torch.eye(3, dtype=torch.float64)}
            waiting = [0]
            for g in waiting:
                for letter, matrix in ((a, A), (b, B)):
                    after = int(table[g, letter])
                    if after not in found:
                        found[after] = found[g] @ matrix
                        waiting.append(after)
            if len(found) == n:
                return torch.stack([found[g] for g in range(n)])
    raise AssertionError("no such pair")


def _order(table: Ints, g: int) -> int:
    power, count = g, 1
    while power:
        power, count = int(table[power, g]), count + 1
    return count


@pytest.mark.parametrize(("task", "order"), [("s3", 2), ("s4", 4), ("a5", 5)])
@pytest.mark.parametrize("backend", ["chunk", "cpu"])
def test_two_directions_track_every_group_of_rotations(task: str, order: int, backend: str) -> None:
    probe = PROBES[task](length=512)
    tokens, labels = probe.draw(4, seed=0, split="test")
    matrices = rotations(probe.table(), order)  # type: ignore[attr-defined]
    keys = torch.stack([two_reflections(turn) for turn in matrices])
    B, T = tokens.shape
    k = keys[torch.from_numpy(tokens)][:, :, None].expand(B, T, 3, 2, 3)  # a head for each column of the state
    q = torch.eye(3, dtype=torch.float64).expand(B, T, 3, 3)
    zero = torch.zeros_like(k)
    start = torch.eye(3, dtype=torch.float64).expand(B, 3, 3, 3)
    erase = torch.full((B, T, 3, 2), 2.0, dtype=torch.float64)
    o, _ = delta_rule(q, k, zero, zero[..., 0], erase=erase, initial_state=start, backend=backend)  # type: ignore[arg-type]
    away = (o.transpose(-1, -2)[:, :, None] - matrices).flatten(-2).norm(dim=-1)
    assert (away.argmin(-1).numpy() == labels).all()
    assert away.min(-1).values.max() < 1e-9
