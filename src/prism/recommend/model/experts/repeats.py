"""The repeat expert: p(i) ∝ e^{score} over a user's own items, fitted to training events that repeat one."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prism.recommend.data.log import Log
from prism.recommend.model.experts.habits import AGES, OF_COUNT, OF_DAY, OF_GAP, WEIGHTS, repeat_examples
from prism.recommend.model.experts.user_state import empty_state

# Enough to fit a hundred weights; more only takes longer.
EXAMPLES, PAIRS = 10_000, 400_000
STEPS, RATE, SMOOTH = 60, 0.1, 3.0


def fit_repeats(train: Log, *, timed: bool, seed: int = 0) -> NDArray[np.float64]:
    """The weights that make the repeated items of a sample of training events likeliest, neighbouring buckets alike."""
    weights = np.zeros(WEIGHTS)
    weights[:AGES] = -0.3 * np.arange(AGES)
    index, value, starts, chosen = _examples(train, timed, seed)
    if not len(chosen):
        return weights
    theta = torch.from_numpy(weights).requires_grad_()
    example = torch.repeat_interleave(torch.arange(len(chosen)), starts.diff())
    optimiser = torch.optim.Adam([theta], lr=RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        score = theta[index].sum(1) + value @ theta[OF_DAY:]
        top = score.detach().max()
        total = torch.zeros(len(chosen), dtype=torch.float64).index_add(0, example, (score - top).exp())
        rough = sum((part.diff() ** 2).sum() for part in _parts(theta))
        loss = (total.log() + top - score[chosen]).sum() + SMOOTH * rough
        (loss / len(chosen)).backward()
        optimiser.step()
    return theta.detach().numpy()


def _parts(theta: Tensor) -> tuple[Tensor, ...]:
    return theta[:OF_COUNT], theta[OF_COUNT:OF_GAP], theta[OF_GAP:OF_DAY]


def _examples(train: Log, timed: bool, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    share = min(1.0, 2 * EXAMPLES / max(train.n_events, 1))
    keep = rng.random(train.n_events) < share
    users = rng.permutation(train.n_users)
    state = empty_state(max(int(train.lengths.max(initial=1)), 1))
    index, value = np.zeros((PAIRS, 3), dtype=np.int64), np.zeros((PAIRS, 3))
    starts, chosen = np.zeros(EXAMPLES + 1, dtype=np.int64), np.zeros(EXAMPLES, dtype=np.int64)
    found, pairs = repeat_examples(
        train.offsets,
        train.items,
        train.times,
        users,
        state,
        train.n_items,
        timed,
        keep,
        PAIRS,
        starts,
        index,
        value,
        chosen,
    )
    arrays = index[:pairs], value[:pairs], starts[: found + 1], chosen[:found]
    a, b, c, d = (torch.from_numpy(x) for x in arrays)
    return a, b, c, d
