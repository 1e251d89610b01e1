"""The k best of each row: those of a stable sort, whatever is left out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.errors import InputError
from prism.recommend.answer.choose import best


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 12), st.booleans())
def test_the_best_are_those_of_a_stable_sort_and_the_scores_stay_as_they_were(
    seed: int, items: int, k: int, ties: bool
) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(4, size=(3, items)).astype(np.float32) if ties else rng.normal(size=(3, items)).astype("f4")
    allowed = rng.random(items) < 0.8
    gone = np.nonzero(rng.random((3, items)) < 0.3)
    given = torch.from_numpy(scores.copy())
    found, codes = best(given, torch.from_numpy(allowed), gone, k)
    assert np.array_equal(given.numpy(), scores)
    left = np.where(allowed, scores, -np.inf)
    left[gone] = -np.inf
    for n in range(3):
        order = np.argsort(-left[n], kind="stable")[:k]
        assert found[n].tolist() == left[n][order].tolist()
        there = left[n][order] > -np.inf
        assert codes[n].numpy()[there].tolist() == order[there].tolist()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_refused(wrong: float) -> None:
    scores = torch.zeros(2, 5)
    scores[1, 3] = wrong
    with pytest.raises(InputError, match="some scores are not finite"):
        best(scores, torch.ones(5, dtype=torch.bool), None, 2)
