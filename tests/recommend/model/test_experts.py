"""The experts: exact distributions, statistics that never contain the event they are asked about."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from prism.errors import InputError
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Queries
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.model.experts import EXPERTS, check_experts, fit_experts, training_views
from prism.recommend.model.experts.tables import WINDOW, co_occurrences, transitions
from prism.recommend.model.experts.user_state import UserState, empty_state, state_after, updated


def log() -> Log:
    return synthetic_log(20, 15, 400)


def queries(of: Log) -> Queries:
    """About every event but each user's first."""
    first = np.zeros(of.n_events, dtype=bool)
    first[of.offsets[:-1]] = True
    positions = np.flatnonzero(~first)
    return Queries(users=of.users[positions], positions=positions, candidates=of.n_items, remove_seen=False)


def same(a: UserState, b: UserState) -> None:
    n = a.distinct
    for name in ("items", "counts", "places", "times", "rhythm", "after"):
        np.testing.assert_array_equal(getattr(a, name)[:n], getattr(b, name)[:n])
    for name in ("recent", "facts", "habit"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_a_state_grown_event_by_event_is_that_of_the_whole_history() -> None:
    rng = np.random.default_rng(0)
    items, times = rng.integers(40, size=200).astype(np.int32), np.sort(rng.integers(10**6, size=200))
    state = empty_state(2)
    for n, (item, when) in enumerate(zip(items.tolist(), times.tolist(), strict=True), 1):
        state = updated(state, item, when)
        same(state, state_after(items[:n], times[:n]))
    assert state.distinct == len(set(items.tolist()))
    assert state.recent.tolist() == items[::-1][: len(state.recent)].tolist()
    last = int(items[-1])
    before = np.flatnonzero(items[:-1] == last)
    followed = state.after[state.items[: state.distinct].tolist().index(last)]
    assert state.items[followed] == items[before[-1] + 1]


@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_tables_are_the_counts_of_a_plain_loop(damping: float) -> None:
    of = log()
    after: Counter[tuple[int, int]] = Counter()
    beside: Counter[tuple[int, int]] = Counter()
    for user in range(of.n_users):
        history = of.history(user).tolist()
        for t, item in enumerate(history):
            if t + 1 < len(history):
                after[item, history[t + 1]] += 1
            for s in range(max(0, t - WINDOW), min(len(history), t + WINDOW + 1)):
                if s != t and history[s] != item:
                    beside[item, history[s]] += 1
    worth = of.item_counts() ** -damping
    for table, pairs, weight in (
        (transitions(of), after, np.ones(of.n_items)),
        (co_occurrences(of, damping), beside, worth),
    ):
        wanted = np.zeros((of.n_items, of.n_items))
        for (row, column), count in pairs.items():
            wanted[row, column] = count * weight[column]
        wanted /= np.maximum(wanted.sum(1, keepdims=True), 1e-12)
        found = np.zeros_like(wanted)
        for row in range(of.n_items):
            part = slice(table.starts[row], table.starts[row + 1])
            found[row, table.columns[part]] = table.shares[part]
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        np.testing.assert_allclose(table.tops, wanted.max(1), rtol=1e-5)


@pytest.mark.parametrize("novel", [False, True])
@pytest.mark.parametrize("timed", [False, True])
def test_every_expert_that_has_a_say_is_a_distribution(novel: bool, timed: bool) -> None:
    of = log()
    asked = queries(of)
    experts = fit_experts(of, novel=novel, timed=timed)
    _, masses = experts.contexts(of, asked)
    query, items, _ = asked.histories(of)
    for n, name in enumerate(EXPERTS):
        gates = np.zeros((len(asked), len(EXPERTS)))
        gates[:, n] = 1
        chances = np.zeros((len(asked), of.n_items))
        experts.add(chances, gates, of, asked)
        assert (chances >= 0).all()
        if novel and name in ("next", "near"):
            assert not chances[query, items].any()
        if novel and name in ("popular", "lately"):  # seen items are out of the ranking; the rest adds up to 1
            chances[query, items] = 0
        has = masses[:, n] > 0
        np.testing.assert_allclose(chances[has].sum(1), 1.0, rtol=1e-4)
        assert not chances[~has].any() or name in ("popular", "lately")
    assert (masses[:, 0] > 0).all() != novel


def test_what_the_experts_say_of_a_training_event_does_not_depend_on_its_users_events_in_the_tables() -> None:
    of = log()
    experts = fit_experts(of, novel=False, timed=True)
    views = training_views(of, experts, folds=of.n_users)  # one user each
    user = 3
    mine = np.arange(of.offsets[user], of.offsets[user + 1])
    others = of.where(of.users != user)
    alone = fit_experts(others, novel=False, timed=True, repeats=experts.repeats)
    asked = Queries(users=np.full(len(mine), user), positions=mine, candidates=of.n_items, remove_seen=False)
    for n in range(len(EXPERTS)):
        gates = np.zeros((len(mine), len(EXPERTS)))
        gates[:, n] = 1
        chances = np.zeros((len(mine), of.n_items))
        alone.add(chances, gates, of, asked)
        np.testing.assert_allclose(
            views.chances[mine, n], chances[np.arange(len(mine)), of.items[mine]], rtol=1e-4, atol=1e-7
        )


def test_lately_knows_nothing_of_what_comes_later() -> None:
    of = log()
    late = of.times > np.median(of.times)
    changed = replace(of, items=np.where(late, 0, of.items).astype(np.int32))
    asked = queries(of)
    early = np.flatnonzero(of.times[asked.positions] <= np.percentile(of.times, 40))
    gates = np.zeros((len(asked), len(EXPERTS)))
    gates[:, EXPERTS.index("lately")] = 1
    found = []
    for one in (of, changed):
        chances = np.zeros((len(asked), of.n_items))
        fit_experts(one, novel=False, timed=True).add(chances, gates, of, asked)
        found.append(chances[early])
    np.testing.assert_array_equal(*found)


def test_an_unknown_expert_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"no expert 'repeats'.*repeat"):
        check_experts(["repeats"])
