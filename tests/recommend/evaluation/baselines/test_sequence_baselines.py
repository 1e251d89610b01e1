"""Markov, session-kNN and EASE against plain loops."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from prism.errors import InputError
from prism.recommend.data.log import Log
from prism.recommend.data.splits import GlobalTime, Queries, Split
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.evaluation.baselines import usable
from prism.recommend.evaluation.baselines.ease import Ease
from prism.recommend.evaluation.baselines.markov import Markov
from prism.recommend.evaluation.baselines.session_knn import SessionKNN

DAY = 86_400


@pytest.fixture(scope="module")
def parts() -> Split:
    """Cold items in histories, users that training never saw."""
    return GlobalTime(valid=0.2, test=0.3, min_item_events=2).split(synthetic_log(30, 80, 900, seed=5))


def history(log: Log, queries: Queries, q: int) -> list[int]:
    """Known items before the query, oldest first; -1 for the others."""
    items = log.items[log.offsets[queries.users[q]] : queries.positions[q]]
    return [int(i) if i < queries.candidates else -1 for i in items]


def test_markov_is_the_smoothed_share_of_what_followed(parts: Split) -> None:
    train, queries, smoothing = parts.train, parts.test, 2.5
    follows: Counter[tuple[int, int]] = Counter()
    for u in range(train.n_users):
        follows.update(zip(train.history(u).tolist(), train.history(u)[1:].tolist(), strict=False))
    popularity = train.item_counts() / train.n_events
    scores = Markov(smoothing=smoothing).fit(train)(parts.log, queries)
    for q in range(len(queries)):
        known = [i for i in history(parts.log, queries, q) if i >= 0]
        count = np.array([follows[(known[-1], j)] if known else 0 for j in range(train.n_items)])
        expected = (count + smoothing * popularity) / (count.sum() + smoothing)
        np.testing.assert_allclose(scores[q], expected, rtol=1e-5)
        np.testing.assert_allclose(scores[q].sum(), 1, rtol=1e-5)


def test_markov_without_a_known_item_is_popularity() -> None:
    log = synthetic_log(10, 20, 100, seed=1)
    empty = Queries(users=np.array([3]), positions=log.offsets[3:4], candidates=20, remove_seen=False)
    scores = Markov().fit(log)(log, empty)
    np.testing.assert_allclose(scores[0], log.item_counts() / log.n_events, rtol=1e-6)


def by_loops(config: SessionKNN, parts: Split, q: int) -> np.ndarray:
    """The definition: sessions as lists of items, one query."""
    train, log, queries = parts.train, parts.log, parts.test
    sessions: list[tuple[int, list[int]]] = []  # (end, items)
    for u in range(train.n_users):
        when, items = train.times[train.offsets[u] : train.offsets[u + 1]], train.history(u).tolist()
        cut = 0
        for a in range(1, len(items) + 1):
            if a == len(items) or (config.gap is not None and when[a] - when[a - 1] > config.gap * 3600):
                sessions.append((int(when[a - 1]), items[cut:a]))
                cut = a
    latest_first = sorted(range(len(sessions)), key=lambda s: -sessions[s][0])
    ages: dict[int, int] = {}
    for age, item in enumerate(reversed(history(log, queries, q)[-config.last :])):
        if item >= 0:
            ages.setdefault(item, age)
    asked = log.times[queries.positions[q] - 1]
    similarity, match = dict[int, float](), dict[int, int]()
    for item, age in ages.items():
        for s in [s for s in latest_first if item in sessions[s][1]][: config.recent]:
            similarity[s] = similarity.get(s, 0.0) + 0.5 ** (age / config.half_life)
            match.setdefault(s, max(a for a, i in enumerate(sessions[s][1]) if i == item))
    for s in similarity:
        if config.by_length:
            similarity[s] /= len(set(sessions[s][1])) ** 0.5
        if config.fade is not None:
            similarity[s] *= 0.5 ** (max(asked - sessions[s][0], 0) / (config.fade * DAY))
    scores = np.zeros(train.n_items)
    for s in sorted(similarity, key=lambda s: -similarity[s])[: config.neighbours]:
        best: dict[int, float] = {}
        for a, item in enumerate(sessions[s][1]):
            offset = a - match[s]
            if 0 < abs(offset) <= config.reach:
                near = 1.0 if config.closeness is None else 0.5 ** ((abs(offset) - 1) / config.closeness)
                best[item] = max(best.get(item, 0.0), near * (config.before if offset < 0 else 1.0))
        for item, weight in best.items():
            scores[item] += similarity[s] * weight
    return scores


@pytest.mark.parametrize(
    "config",
    [
        SessionKNN(),
        SessionKNN(fade=20.0, closeness=None, before=1.0, by_length=True, reach=3),
        SessionKNN(gap=12.0, recent=3, last=4, half_life=3.0),
        SessionKNN(neighbours=1000, recent=1, before=0.0),
    ],
)
def test_session_knn_is_what_the_loops_say(parts: Split, config: SessionKNN) -> None:
    scores = config.fit(parts.train)(parts.log, parts.test)
    assert scores.max() > 0
    for q in range(0, len(parts.test), 3):
        np.testing.assert_allclose(scores[q], by_loops(config, parts, q), rtol=1e-4, atol=1e-6, err_msg=str(q))


def test_session_knn_with_few_neighbours_takes_the_most_similar(parts: Split) -> None:
    config = SessionKNN(neighbours=2, half_life=0.9, fade=7.0)  # no two sessions are equally similar
    scores = config.fit(parts.train)(parts.log, parts.test)
    for q in range(0, len(parts.test), 5):
        np.testing.assert_allclose(scores[q], by_loops(config, parts, q), rtol=1e-4, atol=1e-6, err_msg=str(q))


@pytest.mark.parametrize("config", [Ease(), Ease(half_life=None, last=None, ridge=20.0)])
def test_ease_solves_each_items_ridge_regression_on_the_others(parts: Split, config: Ease) -> None:
    train = parts.train
    taken = np.zeros((train.n_users, train.n_items))
    taken[train.users, train.items] = 1
    weights = np.zeros((train.n_items, train.n_items))
    for j in range(train.n_items):  # item j from all others, one regression at a time
        others = np.delete(np.arange(train.n_items), j)
        x = taken[:, others]
        weights[others, j] = np.linalg.solve(x.T @ x + config.ridge * np.eye(len(others)), x.T @ taken[:, j])
    fitted = config.fit(train)
    np.testing.assert_allclose(fitted.weights.numpy(), weights, atol=1e-5)
    scores = fitted(parts.log, parts.test)
    for q in range(0, len(parts.test), 7):
        asked = np.zeros(train.n_items)
        items = history(parts.log, parts.test, q)
        for n, item in enumerate(items if config.last is None else items[-config.last :]):
            age = min(len(items), config.last or len(items)) - 1 - n
            if item >= 0:
                asked[item] = 1.0 if config.half_life is None else 0.5 ** (age / config.half_life)
        np.testing.assert_allclose(scores[q], asked @ weights, atol=1e-5)


def test_a_catalogue_too_large_for_ease_leaves_it_out_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    log = synthetic_log(10, 40, 100)
    assert usable(log)[1] == []
    with pytest.raises(InputError, match=r"ease cannot be fitted to synthetic-10x40x100: 40 items are more than 30"):
        Ease(most_items=30).fit(log)
    large = replace(log, item_ids=np.arange(20_000))
    names, notes = usable(large)
    assert "ease" not in names
    assert "markov" in names
    assert notes == ["ease is left out: 20,000 items are more than 8,000: it would take 4 GB"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Markov(smoothing=0.0), "smoothing must be above 0"),
        (lambda: Ease(ridge=0.0), "ridge must be above 0"),
        (lambda: Ease(half_life=0.0), "half_life must be above 0, got 0.0"),
        (lambda: SessionKNN(closeness=-1.0), "closeness must be above 0"),
        (lambda: SessionKNN(before=1.5), r"before must be in \[0, 1\], got 1.5"),
        (lambda: SessionKNN(reach=0), "reach must be at least 1"),
    ],
)
def test_a_wrong_field_is_refused_by_name(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        make()
