"""The item table's start from co-occurrences: the matrix by loops, the vectors by a full decomposition."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support import tiny

from prism.recommend.data.splits import split
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.model.start import _positive_information, cooccurrence_rows
from prism.recommend.recommender import Recommender


def by_loops(log, reach: int) -> np.ndarray:  # type: ignore[no-untyped-def, type-arg]
    together = np.zeros((log.n_items, log.n_items))
    for user in range(log.n_users):
        items = log.history(user).tolist()
        for a, i in enumerate(items):
            for b, j in enumerate(items):
                if i != j and 0 < abs(a - b) <= reach:
                    together[i, j] += 1
    each = together.sum(1)
    found = np.zeros_like(together)
    for i, j in zip(*np.nonzero(together), strict=True):
        found[i, j] = max(0.0, np.log(together[i, j] * each.sum() / (each[i] * each[j])))
    return found


@pytest.mark.parametrize("reach", [1, 5])
def test_the_matrix_is_the_positive_information_of_near_pairs(reach: int) -> None:
    log = synthetic_log(20, 30, 400, seed=3)
    np.testing.assert_allclose(_positive_information(log, reach).to_dense().numpy(), by_loops(log, reach), atol=1e-12)


def test_rows_have_the_products_of_the_leading_part_of_the_matrix() -> None:
    log = synthetic_log(60, 40, 2000, seed=4)
    torch.manual_seed(0)
    rows = cooccurrence_rows(log, 6).double().numpy()
    u, s, _ = np.linalg.svd(by_loops(log, 5))
    best = u[:, :6] * np.sqrt(s[:6])
    best /= np.sqrt((best**2).sum(1).mean())
    np.testing.assert_allclose(rows @ rows.T, best @ best.T, atol=2e-3)  # signs and equal values are free
    assert (rows**2).sum(1).mean() == pytest.approx(1, rel=1e-5)


def test_a_model_starts_from_them_and_keeps_random_rows_where_there_are_none() -> None:
    divided = split(tiny.log(), "leave-one-out")
    random = Recommender._untrained(divided, tiny.CONFIG).model.embedding.weight
    config = replace(tiny.CONFIG, start="cooccurrence")
    one, other = (Recommender._starting(divided, config).model.embedding.weight for _ in range(2))
    assert torch.equal(one, other)
    assert torch.equal(one[-1], random[-1])  # the start token
    assert not torch.isclose(one[:-1], random[:-1]).any(1).all()


def test_a_catalogue_smaller_than_the_model_is_wide_is_no_trouble() -> None:
    rows = cooccurrence_rows(synthetic_log(10, 5, 60), 16)
    assert rows.shape == (5, 16)
    assert rows.isfinite().all()
