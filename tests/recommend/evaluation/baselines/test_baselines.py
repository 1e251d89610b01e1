"""Baselines score what they say, from history alone, through the interface that models share."""

import numpy as np
import polars as pl
import pytest

from prism.errors import InputError
from prism.recommend.data.log import Log
from prism.recommend.data.logs import read_log
from prism.recommend.data.splits import GlobalTime, LeaveOneOut, Queries, split
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.evaluation.baselines import BASELINES
from prism.recommend.evaluation.baselines.item_knn import ItemKNN
from prism.recommend.evaluation.baselines.simple import Popularity, RepeatLast
from prism.recommend.evaluation.ranking import evaluate

DAY = 86_400
HISTORIES = {"a": "xyx", "b": "yz", "c": "xyw", "d": "xy"}
ROWS = [(user, item, DAY * (n + 1)) for user, items in HISTORIES.items() for n, item in enumerate(items)]
LOG = read_log(pl.DataFrame(ROWS, schema=["user", "item", "time"], orient="row"))  # items w x y z


def after_all(log: Log) -> Queries:
    """One query per user, after all of their events."""
    return Queries(users=np.arange(log.n_users), positions=log.offsets[1:], candidates=log.n_items, remove_seen=False)


def test_popularity_counts_training_events_and_a_window_counts_the_latest() -> None:
    assert Popularity().fit(LOG)(LOG, after_all(LOG)).tolist() == [[1, 4, 4, 1]] * 4
    assert Popularity(days=0.5).fit(LOG)(LOG, after_all(LOG)).tolist() == [[1, 1, 0, 0]] * 4
    assert Popularity(days=1.5).fit(LOG)(LOG, after_all(LOG)).tolist() == [[1, 1, 3, 1]] * 4


def test_repeat_last_orders_the_users_own_items_by_recency() -> None:
    scores = RepeatLast().fit(LOG)(LOG, after_all(LOG))
    assert scores[0].tolist() == [0, 1, 0.5, 0]  # x twice: the later counts
    assert scores[1].tolist() == [0, 0, 0.5, 1]
    assert RepeatLast(last=1)(LOG, after_all(LOG))[1].tolist() == [0, 0, 0, 1]


def test_item_knn_sums_the_cosines_of_users_in_common() -> None:
    w, x, y, z = range(4)
    users = np.array([[i in items for i in "wxyz"] for items in HISTORIES.values()], dtype=float)
    cosine = users.T @ users / np.sqrt(np.outer(users.sum(0), users.sum(0)))
    np.fill_diagonal(cosine, 0)
    scores = ItemKNN(half_life=None).fit(LOG)(LOG, after_all(LOG))
    np.testing.assert_allclose(scores[0], 2 * cosine[x] + cosine[y], rtol=1e-6)
    np.testing.assert_allclose(scores[1], cosine[y] + cosine[z], rtol=1e-6)
    halved = ItemKNN(half_life=1.0).fit(LOG)(LOG, after_all(LOG))
    np.testing.assert_allclose(halved[2], cosine[w] + cosine[y] / 2 + cosine[x] / 4, rtol=1e-6)
    nearest = ItemKNN(neighbours=1, last=1, half_life=None).fit(LOG)(LOG, after_all(LOG))
    np.testing.assert_allclose(nearest[3], [0, cosine[y, x], 0, 0], rtol=1e-6)


def test_item_knn_on_a_larger_log_equals_the_dense_product() -> None:
    log = synthetic_log(40, 60, 900, seed=0)
    users = np.zeros((40, 60))
    users[log.users, log.items] = 1
    cosine = users.T @ users / np.sqrt(np.outer(users.sum(0), users.sum(0)))
    np.fill_diagonal(cosine, 0)
    fitted = ItemKNN(neighbours=5).fit(log)
    expected = -np.sort(-cosine, axis=1)[:, :5]
    np.testing.assert_allclose(fitted.similarity, expected, rtol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(cosine, fitted.near.astype(int), 1), expected, rtol=1e-6)


def test_longest_keeps_only_the_latest_items_of_a_user() -> None:
    scores = ItemKNN(longest=2, half_life=None).fit(LOG)(LOG, after_all(LOG))
    assert scores[3, 0] > 0  # w and y are c's latest two
    assert ItemKNN(longest=1).fit(LOG)(LOG, after_all(LOG)).sum() == 0  # no pairs at all


@pytest.mark.parametrize("name", list(BASELINES))
def test_every_baseline_uses_nothing_after_its_query_and_survives_cold_items(name: str) -> None:
    parts = GlobalTime(valid=0.2, test=0.3, min_item_events=2).split(synthetic_log(30, 200, 900, seed=5))
    assert parts.test.cold > 0
    scorer = BASELINES[name]().fit(parts.train)
    scores = np.array(scorer(parts.log, parts.test))
    assert scores.shape == (len(parts.test), parts.train.n_items)
    assert np.isfinite(scores).all()
    for q in range(0, len(parts.test), 17):
        user, position = parts.test.users[q], parts.test.positions[q]
        changed = parts.log.items.copy()
        changed[position : parts.log.offsets[user + 1]] = 0
        spoiled = Log(**{f: getattr(parts.log, f) for f in ("offsets", "times", "user_ids", "item_ids")}, items=changed)
        np.testing.assert_array_equal(np.array(scorer(spoiled, parts.test[q : q + 1]))[0], scores[q])


@pytest.mark.parametrize("name", list(BASELINES))
def test_evaluation_in_blocks_of_any_size_is_the_same(name: str) -> None:
    parts = split(synthetic_log(30, 40, 900, seed=6))
    scorer = BASELINES[name]().fit(parts.train)
    one, other = (evaluate(scorer, parts.log, parts.test, block=b, samples=20) for b in (7, 1000))
    assert one.means == other.means
    assert one.history_lengths.min() >= 1


def test_repeat_last_gets_chance_where_seen_items_are_removed() -> None:
    parts = LeaveOneOut().split(synthetic_log(30, 400, 900, seed=7))
    found = evaluate(RepeatLast(), parts.log, parts.test, cutoffs=(10,), samples=10)
    assert found["auc"] == 0.5
    assert found.values["hit@10"] == pytest.approx(10 / found.ranks.candidates)


def test_item_knn_beats_popularity_where_neighbours_follow_each_other() -> None:
    parts = split(synthetic_log(300, 200, 9000, seed=8, jump=0.1))
    knn, popular = (
        evaluate(m.fit(parts.train), parts.log, parts.test, samples=50).means["user"]["ndcg@10"]
        for m in (ItemKNN(), Popularity())
    )
    assert knn.low > popular.high


def test_a_scorer_that_breaks_is_named_with_its_user() -> None:
    parts = split(synthetic_log(30, 40, 900, seed=6))

    def broken(log: Log, queries: Queries) -> np.ndarray:  # type: ignore[type-arg]
        return np.full((len(queries), queries.candidates), np.nan)

    with pytest.raises(InputError, match=r"query of user \d+: 40 of 40 scores are not finite"):
        evaluate(broken, parts.log, parts.test)
    with pytest.raises(InputError, match=r"a scorer gave \[3, 3\], expected"):
        evaluate(lambda log, queries: np.zeros((3, 3)), parts.log, parts.test)
    with pytest.raises(InputError, match="no queries to evaluate"):
        evaluate(broken, parts.log, parts.test[0:0])
    with pytest.raises(InputError, match="unknown baseline 'popular': did you mean 'popularity'"):
        BASELINES["popular"]
