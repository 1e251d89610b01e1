"""Metrics by full ranking: equal to ranx without ties, to the average over all tie orders with them."""

import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import InputError
from prism.recommend.evaluation.intervals import estimates
from prism.recommend.evaluation.metrics import concatenate, metric_values, rank_targets

CUTOFFS = (1, 2, 5, 10)


def by_hand(rank: int, candidates: int) -> dict[str, float]:
    """The metrics of a target that stands at `rank`, from their definitions."""
    values = {f"hit@{k}": float(rank <= k) for k in CUTOFFS}
    values |= {f"ndcg@{k}": 1 / math.log2(rank + 1) if rank <= k else 0.0 for k in CUTOFFS}
    return values | {"mrr": 1 / rank, "auc": (candidates - rank) / (candidates - 1)}


@given(st.lists(st.integers(0, 3), min_size=2, max_size=6), st.data())
def test_ties_get_the_exact_mean_over_every_order_of_the_tied(scores: list[int], data: st.DataObject) -> None:
    target = data.draw(st.integers(0, len(scores) - 1))
    found = metric_values(rank_targets(np.array([scores], dtype=float), np.array([target])), CUTOFFS)
    every: dict[str, list[float]] = {name: [] for name in found}
    for order in itertools.permutations(range(len(scores))):
        # a stable sort of a permuted list breaks ties by the permutation
        ranking = sorted(order, key=lambda item: -scores[item])
        for name, value in by_hand(ranking.index(target) + 1, len(scores)).items():
            every[name].append(value)
    for name, values in every.items():
        assert found[name][0] == pytest.approx(np.mean(values), abs=1e-12), name


RANX = """
import json, sys
import ranx
scores, targets, cutoffs = json.load(sys.stdin)
qrels = ranx.Qrels({f"{q:06}": {str(t): 1} for q, t in enumerate(targets)})
run = ranx.Run({f"{q:06}": {str(i): s for i, s in enumerate(row)} for q, row in enumerate(scores)})
names = [f"{name}@{k}" for name in ("hit_rate", "ndcg") for k in cutoffs] + ["mrr"]
found = ranx.evaluate(qrels, run, names, return_mean=False)
json.dump({name.replace("hit_rate", "hit"): list(map(float, values)) for name, values in found.items()}, sys.stdout)
"""


def ranx_values(scores: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> dict[str, list[float]]:
    """From a process of its own without compilation: ranx takes minutes to compile and a second to run."""
    if importlib.util.find_spec("ranx") is None:
        pytest.skip("ranx is not installed: pip install -e '.[dev]'")
    question = json.dumps([scores.tolist(), targets.tolist(), CUTOFFS])
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "ignore", "-c", RANX]
    done = subprocess.run(command, input=question, env=environment, capture_output=True, text=True, check=True)
    values: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return values


def test_scores_with_and_without_ties_agree_with_ranx() -> None:
    rng = np.random.default_rng(0)
    untied, targets = rng.normal(size=(200, 40)), rng.integers(0, 40, 200)
    untied[np.arange(200), targets] += rng.normal(1.5, 1, 200)
    tied = np.array([[1, 1, 1, 0, 0], [2, 1, 1, 1, 0], [0, 0, 0, 0, 0], [3, 2, 2, 0, 0]], dtype=float)
    tied_targets = np.array([1, 3, 4, 0])
    # every permutation is one way to break the ties, and all of them break them equally often
    orders = np.array(list(itertools.permutations(range(5))))
    broken = (tied[:, None] + 1e-3 * orders).reshape(-1, 5)
    low = np.full((len(broken), 35), -9.0) - np.arange(35)  # to the same width, out of reach
    answer = ranx_values(
        np.concatenate([untied, np.concatenate([broken, low], axis=1)]),
        np.concatenate([targets, np.repeat(tied_targets, len(orders))]),
    )
    found = metric_values(rank_targets(untied, targets), CUTOFFS)
    found_tied = metric_values(rank_targets(tied, tied_targets), CUTOFFS)
    assert set(answer) == set(found) - {"auc"}
    for name, values in answer.items():
        np.testing.assert_allclose(found[name], values[:200], atol=1e-9, err_msg=name)
        averaged = np.reshape(values[200:], (4, len(orders))).mean(1)
        np.testing.assert_allclose(found_tied[name], averaged, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("items", [2, 7, 300])
def test_a_constant_scorer_gets_exactly_chance(items: int) -> None:
    ranks = rank_targets(np.zeros((3, items)), np.array([0, 1, items - 1]))
    found = metric_values(ranks, CUTOFFS)
    assert ranks.expected.tolist() == [(items + 1) / 2] * 3
    assert found["auc"].tolist() == [0.5] * 3
    for k in CUTOFFS:
        assert found[f"hit@{k}"].tolist() == [min(k, items) / items] * 3
        gains = [1 / math.log2(rank + 1) for rank in range(1, min(k, items) + 1)]
        assert found[f"ndcg@{k}"] == pytest.approx(sum(gains) / items)


def test_removed_items_are_out_of_the_ranking_whatever_their_score() -> None:
    rng = np.random.default_rng(1)
    scores, targets = rng.integers(0, 4, (20, 9)).astype(float), rng.integers(0, 9, 20)
    out = rng.random((20, 9)) < 0.4
    out[np.arange(20), targets] = False
    spoiled = np.where(out, rng.choice([np.nan, np.inf, -np.inf, 3.0], (20, 9)), scores)
    found = rank_targets(spoiled, targets, np.nonzero(out))  # type: ignore[arg-type]
    for q in range(20):
        left = np.flatnonzero(~out[q])
        alone = rank_targets(scores[q : q + 1, left], np.flatnonzero(left == targets[q]))
        assert (found.above[q], found.tied[q], found.candidates[q]) == (alone.above, alone.tied, len(left))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_an_error_that_names_the_query(value: float) -> None:
    scores = np.zeros((3, 4), dtype=np.float32)
    scores[1, 2] = value
    with pytest.raises(InputError, match="query 1: 1 of 4 scores are not finite"):
        rank_targets(scores, np.array([0, 2, 0]))
    with pytest.raises(InputError, match="query of 'eve': 1 of 4"):
        rank_targets(scores, np.array([0, 0, 0]), queries=["of 'bob'", "of 'eve'", "of 'dan'"])


def test_wrong_shapes_and_removed_targets_are_refused() -> None:
    with pytest.raises(InputError, match=r"scores must be \[3, items\], got \[2, 4\]"):
        rank_targets(np.zeros((2, 4)), np.array([0, 1, 2]))
    with pytest.raises(InputError, match="target is among the removed"):
        rank_targets(np.zeros((2, 4)), np.array([0, 1]), (np.array([1]), np.array([1])))
    with pytest.raises(InputError, match="cutoff must be at least 1, got 0"):
        metric_values(rank_targets(np.zeros((2, 4)), np.array([0, 1])), [0])


def test_blocks_of_queries_give_what_all_at_once_gives() -> None:
    rng = np.random.default_rng(2)
    scores, targets = rng.integers(0, 9, (50, 30)), rng.integers(0, 30, 50)
    whole = rank_targets(scores, targets)
    parts = concatenate([rank_targets(scores[a : a + 7], targets[a : a + 7]) for a in range(0, 50, 7)])
    for name, values in metric_values(whole).items():
        np.testing.assert_array_equal(values, metric_values(parts)[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_torch_scores_of_any_precision_are_ranked_without_rounding(dtype: torch.dtype) -> None:
    scores = torch.randn(5, 40, requires_grad=True).to(dtype)
    targets = np.arange(5)
    found = rank_targets(scores, targets)
    exact = scores.detach().double().numpy()
    assert found.above.tolist() == [(exact[q] > exact[q, q]).sum() for q in range(5)]
    assert found.tied.tolist() == [(exact[q] == exact[q, q]).sum() for q in range(5)]


def test_six_thousand_users_and_all_films_rank_within_seconds() -> None:
    scores, targets = torch.randn(6040, 3706), np.arange(6040) % 3706
    start = time.perf_counter()
    metric_values(rank_targets(scores, targets))
    assert time.perf_counter() - start < 5  # 0.1 s alone on one core


def test_user_means_count_users_once_and_event_means_count_events() -> None:
    values = {"hit@1": np.array([1.0, 1.0, 1.0, 0.0])}
    found = estimates(values, np.array([5, 5, 5, 9]), samples=50)
    assert found["user"]["hit@1"].mean == 0.5
    assert found["event"]["hit@1"].mean == 0.75


def test_intervals_are_seeded_and_hold_the_mean_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(60), 4)
    inside = {"user": 0, "event": 0}
    for trial in range(200):
        # users differ: an interval that took events for independent would be far too short
        values = {"x": np.repeat(rng.normal(size=60), 4) + 0.1 * rng.normal(size=240)}
        found = estimates(values, users, samples=200, level=0.9, seed=trial)
        for average in inside:
            one = found[average]["x"]  # type: ignore[index]
            inside[average] += one.low <= 0 <= one.high
    assert 165 <= inside["user"] <= 193
    assert 165 <= inside["event"] <= 193
    again = estimates(values, users, samples=200, level=0.9, seed=199)
    assert again == found
    assert estimates(values, users, samples=200, seed=1) != estimates(values, users, samples=200, seed=2)


def test_equal_values_have_an_interval_of_no_width() -> None:
    one = estimates({"x": np.full(7, 0.25)}, np.arange(7), samples=20)["event"]["x"]
    assert (one.low, one.mean, one.high) == (0.25, 0.25, 0.25)


def test_means_of_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="no queries to average"):
        estimates({"x": np.empty(0)}, np.empty(0, dtype=int))
