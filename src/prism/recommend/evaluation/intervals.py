"""Means over users and over events, with bootstrap intervals from resampled users."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prism.config import at_least
from prism.errors import InputError
from prism.recommend.evaluation.metrics import Floats

Average = Literal["user", "event"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean and the ends of its interval."""

    mean: float
    low: float
    high: float


def estimates(
    values: dict[str, Floats], users: NDArray[Any], *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[Average, dict[str, Estimate]]:
    """Per metric the mean over users ("user": each user's mean counts once) and over events ("event").

    Users are drawn with replacement, all queries of a user together: they are not independent. For the
    interval of a difference of two scorers, give the differences of their values as `values`.
    """
    at_least("samples", samples, 1)
    if not len(users):
        raise InputError("no queries to average: the metrics of nothing are not defined")
    _, codes = np.unique(users, return_inverse=True)
    counts = np.bincount(codes).astype(np.float64)
    sums = np.stack([np.bincount(codes, weights=value) for value in values.values()], axis=1)
    means = sums / counts[:, None]
    columns = np.concatenate([means, sums, counts[:, None]], axis=1)
    drawn = _resampled_totals(columns, samples, seed)
    n = len(values)
    found: dict[Average, tuple[Floats, Floats]] = {
        "user": (means.mean(0), drawn[:, :n] / len(counts)),
        "event": (sums.sum(0) / counts.sum(), drawn[:, n : 2 * n] / drawn[:, 2 * n :]),
    }
    return {average: _named(values, *pair, level) for average, pair in found.items()}


def _named(values: dict[str, Floats], mean: Floats, drawn: Floats, level: float) -> dict[str, Estimate]:
    low, high = np.percentile(drawn, [50 - 50 * level, 50 + 50 * level], axis=0)
    return {
        name: Estimate(mean=float(mean[i]), low=float(low[i]), high=float(high[i])) for i, name in enumerate(values)
    }


def _resampled_totals(columns: Floats, samples: int, seed: int) -> Floats:
    """[samples, columns]: sums over as many rows as there are, drawn with replacement."""
    rng = np.random.default_rng(seed)
    n = len(columns)
    block = max(1, 2_000_000 // n)  # bounds the memory of the draws
    parts = []
    for start in range(0, samples, block):
        size = min(block, samples - start)
        drawn = rng.integers(n, size=(size, n)) + np.arange(size)[:, None] * n
        times = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
        parts.append(times.astype(np.float64) @ columns)
    return np.concatenate(parts)
