"""The experts: features as defined, statistics that never contain the event they are asked about."""

from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from prism import read_log
from prism.errors import InputError
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Queries
from prism.recommend.data.synthetic import markov_log, synthetic_log
from prism.recommend.model.experts import (
    EXPERTS,
    Experts,
    TrainingFeatures,
    check_experts,
    fit_experts,
    popular,
    regression,
    tables,
    training,
)
from prism.recommend.model.experts.entries import KINDS, REPEAT_FLOOR, TOGETHER_READ
from prism.recommend.model.experts.popular import popularity
from prism.recommend.model.experts.regression import LATEST, RIDGE
from prism.recommend.model.experts.tables import (
    BEFORE,
    CLOSENESS,
    FOLLOW_DOUBT,
    FOLLOW_FLOOR,
    FOLLOW_ITEMS,
    KEPT,
    LEAST_ACCIDENTS,
    NEAR_DOUBT,
    NEAR_FLOOR,
    NEXT_DOUBT,
    NEXT_ITEMS,
    REACH,
    WINDOW,
    co_occurrences,
    company,
    followers,
    no_accident,
    successions,
    transitions,
)
from prism.recommend.model.experts.user_state import (
    MOST,
    RECENT,
    STEP,
    VISIT_GAP,
    UserState,
    empty_state,
    state_after,
    updated,
)
from prism.recommend.model.mixture import Gates


def log() -> Log:
    return synthetic_log(20, 15, 400)


def queries(of: Log) -> Queries:
    """About every event but each user's first."""
    first = np.zeros(of.n_events, dtype=bool)
    first[of.offsets[:-1]] = True
    positions = np.flatnonzero(~first)
    return Queries(users=of.users[positions], positions=positions, candidates=of.n_items, remove_seen=False)


def same(a: UserState, b: UserState) -> None:
    for mine, other in zip(a.trimmed(), b.trimmed(), strict=True):
        np.testing.assert_array_equal(mine, other)


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
    assert followed == items[before[-1] + 1]


def test_of_many_distinct_items_the_latest_keep_their_counts_and_all_their_codes() -> None:
    rng = np.random.default_rng(0)
    items, times = rng.integers(MOST + 90, size=2500).astype(np.int32), np.sort(rng.integers(10**6, size=2500))
    state = empty_state()
    since: dict[int, int] = {}  # how often each was taken since it has its slot, longest ago first
    for n, (item, when) in enumerate(zip(items.tolist(), times.tolist(), strict=True), 1):
        state = updated(state, item, when)
        since[item] = since.pop(item, 0) + 1
        if len(since) > MOST:
            del since[next(iter(since))]
        if n % 250 == 0:
            same(state, state_after(items[:n], times[:n]))
            mine = state.trimmed()
            assert dict(zip(mine.items.tolist(), mine.counts.tolist(), strict=True)) == since
            assert mine.items[np.argsort(mine.places)].tolist() == list(since)
    assert state.taken.tolist() == list(dict.fromkeys(items.tolist()))
    assert state.distinct > MOST == len(state.items)


def test_what_is_kept_of_a_user_grows_by_a_little_at_a_time_until_it_is_full() -> None:
    state, sizes = empty_state(), []
    for n in range(2 * MOST):
        state = updated(state, n, n)
        sizes.append(sum(part.nbytes for part in state))
    held, steps = np.array(sizes) - sizes[0], np.diff(sizes)
    assert held[MOST - 1] <= 44 * MOST
    assert steps[: MOST - 1].max() <= 50 * STEP
    assert steps[MOST:].max() <= 4 * MOST / 8  # of the others, their codes alone
    assert (held[MOST:] <= 44 * MOST + 4.5 * np.arange(1, MOST + 1) + 4 * MOST / 8).all()


def test_tables_are_the_counts_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    of = log()
    after: Counter[tuple[int, int]] = Counter()
    beside: Counter[tuple[int, int]] = Counter()
    around: Counter[tuple[int, int]] = Counter()
    for user in range(of.n_users):
        history = of.history(user).tolist()
        for t, item in enumerate(history):
            if t + 1 < len(history):
                after[item, history[t + 1]] += 1
            for s in range(max(0, t - WINDOW), min(len(history), t + WINDOW + 1)):
                if s != t and history[s] != item:
                    beside[item, history[s]] += 1
            for s in range(max(0, t - REACH), min(len(history), t + REACH + 1)):
                if s != t and history[s] != item:
                    around[item, history[s]] += (BEFORE if s < t else 1) * 0.5 ** ((abs(s - t) - 1) / CLOSENESS)
    for kept in (4, 256):
        monkeypatch.setattr(tables, "KEPT", kept)
        for table, pairs in ((successions(of), after), (co_occurrences(of), beside), (followers(of), around)):
            wanted = np.zeros((of.n_items, of.n_items))
            for (row, column), count in pairs.items():
                wanted[row, column] = count
            wanted = wanted / np.maximum(wanted.sum(1, keepdims=True), 1e-12)
            np.testing.assert_allclose(table.tops, wanted.max(1), rtol=1e-5)
            for row in range(of.n_items):  # of a long row the largest entries
                part = slice(table.starts[row], table.starts[row + 1])
                assert (np.diff(table.columns[part]) > 0).all()
                np.testing.assert_allclose(table.shares[part], wanted[row, table.columns[part]], rtol=1e-5)
                largest = np.sort(wanted[row][wanted[row] > 0])[::-1][:kept]
                np.testing.assert_allclose(np.sort(table.shares[part])[::-1], largest, rtol=1e-5)


def test_what_came_by_accident_is_told_from_what_belongs_together() -> None:
    of = markov_log(users=600, items=800, events=40_000, seed=1, jump=0.3)
    rows = successions(of)
    chance, unprompted = no_accident(rows, popularity(of))
    row = np.repeat(np.arange(of.n_items), np.diff(rows.starts))
    count = np.rint(rows.shares * rows.totals[row])
    # each item has eight successors; three of ten events are jumps
    assert 6 < chance.sum() / of.n_items < 10
    assert 0.2 < ((1 - chance) * count).sum() / count.sum() < 0.4
    assert chance[count >= 4].mean() > 0.95
    assert chance[count == 1].mean() < 0.6
    assert unprompted.sum() == pytest.approx(1 - (chance * count).sum() / rows.totals.sum())
    # where jumps go is known better from accidents than from all that is taken
    jumps = markov_log(users=600, items=800, events=40_000, seed=1, jump=1.0)  # the same, and nothing but jumps
    np.testing.assert_array_equal(jumps.item_ids, of.item_ids)
    accidents, taken = (np.corrcoef(jumps.item_counts(), found)[0, 1] for found in (unprompted, popularity(of)))
    assert accidents > 0.9
    assert accidents > taken + 0.05
    kept, kept_unprompted = transitions(of)
    np.testing.assert_array_equal(kept_unprompted, unprompted)
    np.testing.assert_allclose(kept.shares, rows.shares * chance, rtol=1e-5)
    np.testing.assert_allclose(kept.tops, [kept.shares[row == j].max(initial=0) for j in range(of.n_items)])


def one_kind(experts: Experts, of: Log, asked: Queries, kind: str) -> np.ndarray:
    """[queries, items]: the feature of one kind."""
    weights = np.zeros((len(asked), len(KINDS)), dtype=np.float32)
    weights[:, KINDS.index(kind)] = 1
    found = np.zeros((len(asked), of.n_items), dtype=np.float32)
    experts.add(found, weights, of, asked)
    return found


def test_features_are_those_of_a_plain_loop() -> None:
    of = log()
    asked = queries(of)
    experts = fit_experts(of, timed=True, novel=False)
    (follows, accidents), near, around, n = transitions(of), co_occurrences(of), followers(of), of.n_items
    own, repeat, after, _, visit, follow, _, popular, lately, unprompted = (
        one_kind(experts, of, asked, kind) for kind in KINDS
    )
    assert accidents.sum() > LEAST_ACCIDENTS
    np.testing.assert_allclose(unprompted, np.broadcast_to(np.log(accidents * n), unprompted.shape), rtol=1e-4)
    counts = of.item_counts() + 1
    np.testing.assert_allclose(popular, np.broadcast_to(np.log(counts / counts.sum() * n), popular.shape), rtol=1e-4)
    for q in range(0, len(asked), 7):
        user, position = asked.users[q], asked.positions[q]
        history = of.items[of.offsets[user] : position].tolist()
        assert set(np.flatnonzero(own[q]).tolist()) == set(history)
        shares = np.expm1(repeat[q].astype(np.float64)) * REPEAT_FLOOR
        np.testing.assert_allclose(shares.sum(), 1.0, rtol=1e-3)
        for rows, counts_as, doubt, floor, found in (
            (follows, lambda age: 1.0, NEXT_DOUBT, accidents, after),
            (near, lambda age: 1.0, NEAR_DOUBT, NEAR_FLOOR / n, visit),
            (around, lambda age: 0.5 ** (age / 2), FOLLOW_DOUBT, FOLLOW_FLOOR * counts / counts.sum(), follow),
        ):
            p, total = np.zeros(n), 0.0
            when = of.times[of.offsets[user] : position][::-1]
            pauses = np.flatnonzero(-np.diff(when) > VISIT_GAP)
            latest = len(history) if found is not visit or not len(pauses) else pauses[0] + 1
            latest = min(latest, NEXT_ITEMS if found is after else FOLLOW_ITEMS if found is follow else latest)
            for age, item in enumerate(history[::-1][: min(RECENT, latest)]):
                weight = counts_as(age)
                total += weight
                part = slice(rows.starts[item], rows.starts[item + 1])
                p[rows.columns[part]] += weight * rows.totals[item] / (rows.totals[item] + doubt) * rows.shares[part]
            np.testing.assert_allclose(found[q], np.log1p(p / total / floor), rtol=1e-4, atol=1e-6)
    assert lately.std() > 0


@pytest.mark.parametrize(("pair_events", "most"), [(1 << 23, KEPT), (150, KEPT), (1 << 23, 2)])
def test_two_items_in_turn_say_what_came_directly_after_them(
    pair_events: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PAIR_EVENTS", pair_events)
    monkeypatch.setattr(tables, "KEPT", most)
    of = log()
    least = -(-of.n_events // pair_events)
    assert least == (1 if pair_events > of.n_events else 3)
    after: dict[tuple[int, int], Counter[int]] = {}
    for user in range(of.n_users):
        history = of.history(user).tolist()
        for a, b, c in zip(history, history[1:], history[2:], strict=False):
            after.setdefault((a, b), Counter())[c] += 1
    accidents = transitions(of)[1]
    experts, asked = fit_experts(of, timed=True, novel=False), queries(of)
    found, contexts, heard = one_kind(experts, of, asked, "pair"), experts.contexts(of, asked), 0
    for q, (user, position) in enumerate(zip(asked.users, asked.positions, strict=True)):
        came = after.get(tuple(of.items[max(of.offsets[user], position - 2) : position].tolist()), Counter())
        total = came.total()
        often = sorted((-count, item) for item, count in came.items() if count >= least and total >= 2)
        kept = {item: (-less - 0.75) / total for less, item in often[:most]}
        wanted = np.zeros(of.n_items)
        for item, share in kept.items():
            wanted[item] = np.log1p(share / accidents[item])
        np.testing.assert_allclose(found[q], wanted, rtol=1e-4, atol=1e-6)
        known = [np.log1p(total) / 4, max(kept.values())] if kept else [0, 0]
        np.testing.assert_allclose(contexts[q, 13:15], known, rtol=1e-5)
        heard += bool(kept)
    assert 10 < heard < len(asked)


@pytest.mark.parametrize("of", [log(), synthetic_log(40, 300, 4000)], ids=["short rows", "rows read in part"])
def test_what_belongs_together_is_regressed_on_all_items_of_the_user(of: Log) -> None:
    taken = np.zeros((of.n_users, of.n_items))
    for user in range(of.n_users):
        taken[user, list(dict.fromkeys(of.history(user)[::-1].tolist()))[:LATEST]] = 1
    counts = of.item_counts() + 1
    popular, said = counts / counts.sum(), np.zeros((of.n_items, of.n_items))
    for j in range(of.n_items):  # one ridge regression for each item, on all others
        others = np.delete(taken, j, 1)
        weights = np.linalg.solve(others.T @ others + RIDGE * np.eye(of.n_items - 1), others.T @ taken[:, j])
        said[np.arange(of.n_items) != j, j] = weights
    said = np.maximum(said, 0)
    asked = queries(of)
    found = one_kind(fit_experts(of, timed=True, novel=False), of, asked, "together")
    whole = True
    for q in range(0, len(asked), 7):
        items = np.unique(of.items[of.offsets[asked.users[q]] : asked.positions[q]])
        rows = said[items]
        read = min(TOGETHER_READ // len(items), KEPT)
        whole &= read >= of.n_items
        heard = np.where(rows >= np.sort(rows, 1)[:, [-min(read, of.n_items)]], rows, 0).sum(0)
        lift = heard / heard.sum() / popular
        sure = np.abs(lift - 1) > 1e-3
        wanted = np.where(lift > 1, np.log(np.maximum(lift, 1)), 0)
        np.testing.assert_allclose(found[q][sure], wanted[sure], rtol=1e-3, atol=1e-3)
    assert found.any()
    assert whole == (of.n_items < KEPT)


def test_a_catalogue_larger_than_is_regressed_has_rows_of_the_most_taken_items(monkeypatch: pytest.MonkeyPatch) -> None:
    of = log()
    monkeypatch.setattr(regression, "MOST_ITEMS", 6)
    most = np.argsort(-of.item_counts(), kind="stable")[:6]
    rows = company(of)
    assert set(np.flatnonzero(np.diff(rows.starts)).tolist()) <= set(most.tolist())
    assert set(rows.columns.tolist()) <= set(most.tolist())
    alone = company(of.where(np.isin(of.items, most)))
    np.testing.assert_allclose(rows.shares, alone.shares, rtol=1e-5)


@pytest.mark.parametrize("novel", [False, True])
def test_what_the_experts_say_of_a_training_event_does_not_depend_on_its_users_events_in_the_tables(
    novel: bool,
) -> None:
    of = log()
    experts = fit_experts(of, novel=novel, timed=True)
    features = TrainingFeatures.of_log(of, experts, folds=of.n_users)  # one user each
    user, start = 3, 2
    first, last = of.offsets[user] + start, of.offsets[user + 1]
    seen = features.of(np.array([user]), np.array([first]), np.array([last]))
    others = of.where(of.users != user)
    alone = fit_experts(others, novel=novel, timed=True, repeats=experts.repeats)
    mine = np.arange(first, last)
    asked = Queries(users=np.full(len(mine), user), positions=mine, candidates=of.n_items, remove_seen=False)
    dense = np.zeros((len(mine), len(KINDS), of.n_items))
    starts, items, kinds, values, bank, rows = (part.numpy() for part in seen.added)
    token = np.repeat(np.arange(len(mine)), np.diff(starts))
    dense[token, kinds, items] = values
    dense[:, -3:] = bank[rows]
    history = [set(of.items[of.offsets[user] : t].tolist()) for t in mine]
    asks = np.array([not novel or of.items[t] not in before for t, before in zip(mine, history, strict=True)])
    assert asks.any()
    assert not dense[~asks].any()  # an event that is never asked about
    for n, kind in enumerate(KINDS):
        wanted = one_kind(experts if kind == "lately" else alone, of, asked, kind)
        np.testing.assert_allclose(dense[asks, n], wanted[asks], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(seen.contexts.numpy(), alone.contexts(of, asked), rtol=1e-5, atol=1e-6)


def test_the_only_user_of_a_log_is_told_nothing_by_the_tables() -> None:
    of = synthetic_log(20, 15, 400).where(np.arange(400) < 30)
    of = of.where(of.users == of.users[0])
    seen = TrainingFeatures.of_log(of, fit_experts(of, novel=False, timed=True)).of(
        np.array([of.users[0]]), np.array([of.offsets[of.users[0]]]), np.array([of.offsets[of.users[0] + 1]])
    )
    assert set(seen.added.kinds.tolist()) <= {KINDS.index("own"), KINDS.index("repeat")}


def test_a_window_late_in_a_long_history_is_reached_from_a_state_that_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    longest = MOST + 400  # more distinct items than have slots
    users = np.concatenate([np.zeros(longest, int), rng.integers(1, 20, 500)])
    items = np.concatenate([rng.permutation(MOST + 200), rng.integers(0, MOST + 200, 700)])
    of = read_log(pl.DataFrame({"user": users, "item": items, "time": rng.integers(0, 10**6, len(users))}))
    experts = fit_experts(of, novel=False, timed=True)
    user = int(np.argmax(of.lengths))
    starts = of.offsets[user] + np.array([0, 63, 64, 65, 500, longest - 3])
    asked = (np.full(len(starts), user), starts, np.minimum(starts + 40, of.offsets[user + 1]))
    along = []
    for stride in (64, 10**9):
        monkeypatch.setattr(training, "STRIDE", stride)
        features = TrainingFeatures.of_log(of, experts)
        along.append(sum(map(len, features._along.values())))
        seen = features.of(*asked)
        if stride == 64:
            kept = seen
    assert along == [(longest - 1) // 64, 0]
    torch.testing.assert_close(kept.contexts, seen.contexts, rtol=0, atol=0)
    for mine, replayed in zip(kept.added, seen.added, strict=True):
        torch.testing.assert_close(mine, replayed, rtol=0, atol=0)


def test_lately_knows_nothing_of_what_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popular, "HALF_LIVES", (12.0,))  # which of several is best is a matter of all training events
    of = log()
    late = of.times > np.median(of.times)
    changed = replace(of, items=np.where(late, 0, of.items).astype(np.int32))
    asked = queries(of)
    early = np.flatnonzero(of.times[asked.positions] <= np.percentile(of.times, 40))
    found = [one_kind(fit_experts(one, novel=False, timed=True), of, asked, "lately") for one in (of, changed)]
    np.testing.assert_array_equal(found[0][early], found[1][early])


@pytest.mark.parametrize(("days", "forgets"), [(3.0, True), (None, False)], ids=["news", "classics"])
def test_what_is_popular_of_late_is_forgotten_as_fast_as_the_log_forgets(days: float | None, forgets: bool) -> None:
    rng, items, events = np.random.default_rng(0), 200, 20_000
    times = np.sort(rng.integers(0, 60 * 86_400, events))
    liked, born = rng.gamma(0.5, size=items), rng.uniform(-10, 60, items)
    age = times[:, None] / 86_400 - born
    chance = np.where(age > 0, liked * np.exp(-age / days), 1e-9) if days else np.tile(liked, (events, 1))
    taken = (np.cumsum(chance, 1) < rng.random((events, 1)) * chance.sum(1, keepdims=True)).sum(1)
    user = rng.permutation(np.arange(events) % 500)
    order = np.lexsort((times, user))
    of = Log(
        offsets=np.arange(501) * (events // 500),
        items=taken[order].astype(np.int32),
        times=times[order],
        user_ids=np.arange(500),
        item_ids=np.arange(items),
        name="news",
    )
    starts, found = popular.recent_popularity(of)
    counts = np.zeros(found.shape, dtype=np.int32)
    popular.count_periods(of, starts, counts)
    tried = [popular.faded(counts, starts, int(times[0]), each) for each in popular.HALF_LIVES]
    chosen = [np.array_equal(found, one) for one in tried].index(True)
    assert popular.HALF_LIVES[chosen] in ((48.0, 192.0) if forgets else (0.0,))
    # of all events that were, none of those to come
    expected = np.bincount(of.items[of.times < starts[40]], minlength=items) + popular.GIVEN_LATELY
    np.testing.assert_allclose(tried[0][40], expected / expected.sum())


def test_an_unknown_expert_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"no expert 'repeats'.*repeat"):
        check_experts(["repeats"])


def test_a_live_user_of_more_items_than_keep_their_counts_is_told_what_a_query_is() -> None:
    of = synthetic_log(3, MOST + 100, 6000)
    experts = fit_experts(of, novel=False, timed=False)
    last = of.offsets[1:] - 1
    asked = Queries(users=np.arange(of.n_users), positions=last, candidates=of.n_items, remove_seen=False)
    torch.manual_seed(0)
    gates, x = Gates(8, EXPERTS), torch.randn(of.n_users, 8)
    for weight in gates.parameters():
        torch.nn.init.normal_(weight)
    with torch.no_grad():
        weights = gates(x, torch.from_numpy(experts.contexts(of, asked))).numpy()
    wanted, found = np.zeros((2, of.n_users, of.n_items), dtype=np.float32)
    experts.add(wanted, weights, of, asked)
    events = [slice(first, end) for first, end in zip(of.offsets[:-1], last, strict=True)]
    states = [state_after(of.items[part], of.times[part]) for part in events]
    assert max(state.distinct for state in states) > MOST
    experts.add_live(found, x.numpy(), gates.arrays(), states, None)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
