"""Protocols: who trains, who is asked about, and that the future reaches neither training nor candidates."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import InputError
from prism.recommend.data.log import Log
from prism.recommend.data.logs import read_log
from prism.recommend.data.splits import GlobalTime, LeaveOneOut, Paper, Protocol, Queries, Split, split
from prism.recommend.data.synthetic import synthetic_log

Rows = list[tuple[object, object, int]]


def log_of(rows: Rows) -> Log:
    return read_log(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"))


def sequences(log: Log) -> dict[object, list[object]]:
    return {u: log.item_ids[log.history(c)].tolist() for c, u in enumerate(log.user_ids.tolist())}


def asked(log: Log, queries: Queries) -> list[tuple[object, list[object], object]]:
    """(user, history, target) in the source's ids."""
    result = []
    for user, position in zip(queries.users, queries.positions, strict=True):
        history = log.items[log.offsets[user] : position]
        result.append((log.user_ids[user], log.item_ids[history].tolist(), log.item_ids[log.items[position]]))
    return result


ROWS: Rows = [
    ("a", "p", 1), ("a", "q", 2), ("b", "q", 3), ("a", "p", 11), ("b", "new", 12), ("c", "q", 13),
    ("a", "q", 21), ("b", "p", 22), ("c", "p", 23), ("a", "new", 24), ("aa", "q", 25),
]  # fmt: skip


def test_global_time_asks_about_every_later_event_with_its_full_history() -> None:
    parts = GlobalTime(cutoffs=(10, 20)).split(log_of(ROWS))
    assert sequences(parts.train) == {"a": ["p", "q"], "b": ["q"]}
    assert asked(parts.log, parts.valid) == [("a", ["p", "q"], "p")]
    assert (parts.valid.cold, parts.valid.no_history) == (1, 1)  # "new" was no item yet, "c" no user
    assert asked(parts.log, parts.test) == [
        ("a", ["p", "q", "p"], "q"),
        ("b", ["q", "new"], "p"),
        ("c", ["q"], "p"),
    ]
    assert (parts.test.cold, parts.test.no_history, parts.test.candidates) == (1, 1, 2)
    assert "1 cold, 1 without history" in parts.describe()


def test_codes_of_training_are_the_first_codes_of_the_whole() -> None:
    parts = GlobalTime(cutoffs=(10, 20)).split(log_of(ROWS))
    assert parts.log.user_ids.tolist() == ["a", "b", "aa", "c"]
    assert parts.log.item_ids.tolist() == ["p", "q", "new"]
    assert parts.train.item_ids.tolist() == ["p", "q"]


def test_first_and_last_targets_are_one_a_user_and_period() -> None:
    log = log_of([row for row in ROWS if row[1] != "new"] + [("a", "p", 30)])
    for which, target in (("first", "q"), ("last", "p")):
        parts = GlobalTime(cutoffs=(10, 20), targets=which).split(log)  # type: ignore[arg-type]
        found = asked(parts.log, parts.test)
        assert [user for user, _, _ in found] == ["a", "b", "c"]
        assert found[0][2] == target


def test_filters_count_training_events_only() -> None:
    rows: Rows = [*ROWS, ("b", "q", 30), ("b", "q", 31), ("a", "p", 32)]
    parts = GlobalTime(cutoffs=(10, 20), min_item_events=2).split(log_of(rows))
    assert parts.train.item_ids.tolist() == ["q"]  # p has one event before 10, and three after
    assert sequences(parts.train) == {"a": ["q"], "b": ["q"]}
    parts = GlobalTime(cutoffs=(10, 20), min_user_events=2).split(log_of(rows))
    assert sequences(parts.train) == {"a": ["p", "q"]}
    assert "b" in [user for user, _, _ in asked(parts.log, parts.test)]


def test_shares_cut_at_quantiles_of_time_and_one_moment_is_never_cut() -> None:
    log = log_of([(n % 2, n % 3, n) for n in range(100)])
    parts = GlobalTime(valid=0.2, test=0.1).split(log)
    assert (parts.train.n_events, len(parts.valid), len(parts.test)) == (70, 20, 10)
    tied = log_of([(n % 2, n % 3, min(n, 75)) for n in range(100)])
    parts = Paper(min_user_events=2, valid=0.15, test=0.15).split(tied)
    assert (parts.train.n_events, len(parts.valid), len(parts.test)) == (70, 5, 25)


def test_leave_one_out_holds_out_the_last_two_and_removes_what_was_seen() -> None:
    rows: Rows = [("a", i, t) for t, i in enumerate("pqrs")] + [("b", "p", 1), ("b", "q", 2)]
    rows += [("c", i, t) for t, i in enumerate("pqpq")] + [("d", "z", 1), ("e", "p", 1), ("e", "q", 2), ("e", "r", 3)]
    parts = LeaveOneOut().split(log_of(rows))
    assert sequences(parts.train) == {"a": ["p", "q"], "b": ["p", "q"], "c": ["p", "q"], "d": ["z"], "e": ["p"]}
    assert asked(parts.log, parts.valid) == [("a", ["p", "q"], "r"), ("e", ["p"], "q")]
    assert asked(parts.log, parts.test) == [("a", ["p", "q", "r"], "s"), ("e", ["p", "q"], "r")]
    assert (parts.valid.repeated, parts.test.repeated) == (1, 1)  # c took p and q before
    assert parts.test.candidates == parts.train.n_items == 5
    removed = parts.test.removed(parts.log)
    assert removed is not None
    named = [(int(row), parts.log.item_ids[item]) for row, item in zip(*removed, strict=True)]
    assert named == [(0, "p"), (0, "q"), (0, "r"), (1, "p"), (1, "q")]
    again = LeaveOneOut(remove_seen=False).split(log_of(rows))
    assert [target for _, _, target in asked(again.log, again.test)] == ["s", "q", "r"]
    assert again.test.removed(again.log) is None


def test_the_papers_protocol_keeps_long_users_and_ranks_all_items() -> None:
    rows: Rows = [("long", n, n) for n in range(40)] + [("short", n, n) for n in range(39)]
    rows += [("late", n, 100 + n) for n in range(40)]
    parts = split(log_of(rows), "paper")
    assert set(parts.log.user_ids) == {"long", "late"}
    assert parts.test.candidates == parts.log.n_items == 40
    assert (parts.train.n_events, len(parts.valid), len(parts.test)) == (56, 12, 12)


def test_histories_list_the_events_before_each_target_with_their_age() -> None:
    parts = GlobalTime(cutoffs=(10, 20)).split(log_of(ROWS))
    query, items, age = parts.test[0:2].histories(parts.log)
    assert query.tolist() == [0, 0, 0, 1, 1]
    assert parts.log.item_ids[items].tolist() == ["p", "q", "p", "q", "new"]
    assert age.tolist() == [2, 1, 0, 1, 0]
    query, items, age = parts.test[0:2].histories(parts.log, last=1)
    assert (query.tolist(), age.tolist()) == ([0, 1], [0, 0])


def test_blocks_cover_all_queries_in_order() -> None:
    parts = split(synthetic_log(20, 30, 600, seed=0))
    blocks = list(parts.test.blocks(7))
    assert max(map(len, blocks)) == 7
    np.testing.assert_array_equal(np.concatenate([b.positions for b in blocks]), parts.test.positions)


def known_to_training(parts: Split) -> list[object]:
    """All that training, its statistics and its candidates are made of."""
    train = parts.train
    arrays = [train.offsets, train.items, train.times, train.item_counts(), train.user_ids, train.item_ids]
    return [*(array.tolist() for array in arrays), parts.valid.candidates, parts.test.candidates]


@given(st.integers(0, 10**6), st.sampled_from(["items", "users", "times", "unseen"]))
def test_nothing_after_the_cutoff_reaches_training_under_global_time(seed: int, change: str) -> None:
    rng = np.random.default_rng(seed)
    frame = synthetic_log(12, 25, 300, seed=seed).frame().sample(fraction=1.0, shuffle=True, seed=seed)
    protocol = GlobalTime(valid=0.2, test=0.2, min_item_events=5, min_user_events=12)
    before = protocol.split(read_log(frame))
    user, item, time = (frame[name].to_numpy().copy() for name in ("user", "item", "time"))
    cut = np.sort(time)[180]
    late = time >= cut
    if change == "items":
        item[late] = rng.permutation(item[late])
    elif change == "users":
        user[late] = rng.integers(-5, 40, late.sum())  # new users, before and after the old ids
    elif change == "times":
        time[late] = rng.permutation(time[late]) + rng.integers(0, 10**6, late.sum())
    else:
        item[late] = rng.integers(-100, 100, late.sum())
    after = protocol.split(read_log(pl.DataFrame({"user": user, "item": item, "time": time})))
    assert before.test.positions.tolist() or after.test.positions.tolist()
    assert known_to_training(before) == known_to_training(after)


@given(st.integers(0, 10**6), st.sampled_from(["leave-one-out", "paper"]))
def test_shuffling_held_out_items_changes_no_training_sequence_or_candidate(seed: int, name: str) -> None:
    log = synthetic_log(12, 400, 900, seed=seed)
    protocol: Protocol = LeaveOneOut() if name == "leave-one-out" else Paper(min_user_events=20)
    before = protocol.split(log)
    held = np.ones(before.log.n_events, dtype=bool)
    held[events_of_training(before)] = False
    items = before.log.items.copy()
    items[held] = np.random.default_rng(seed).permutation(items[held])
    changed = replace(before.log, items=items)
    assert (items != before.log.items).any()
    again = protocol.split(changed)
    assert known_to_training(protocol.split(before.log)) == known_to_training(again)


def events_of_training(parts: Split) -> list[int]:
    """Positions in the whole log: a user's training events are the first ones."""
    starts = parts.log.offsets[: parts.train.n_users]
    return [s + n for s, length in zip(starts, parts.train.lengths, strict=True) for n in range(length)]


def test_no_history_reaches_the_target_or_anything_later() -> None:
    for name in ("global-time", "leave-one-out"):
        parts = split(synthetic_log(30, 40, 900, seed=3), name)
        for queries in (parts.valid, parts.test):
            query, _, age = queries.histories(parts.log)
            events = queries.positions[query] - 1 - age
            assert (events < queries.positions[query]).all()
            assert (parts.log.times[events] <= parts.log.times[queries.positions[query]]).all()


def test_splits_that_leave_nothing_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="leaves no event to train on"):
        GlobalTime().split(log_of([("a", "p", 1), ("a", "q", 1), ("b", "p", 1)]))
    with pytest.raises(InputError, match="no test query under leave-one-out"):
        LeaveOneOut().split(log_of([("a", "p", 1), ("a", "q", 1), ("b", "p", 1)]))
    with pytest.raises(InputError, match="has 40 events, the most is 2"):
        Paper().split(log_of([("a", "p", 1), ("a", "q", 1), ("b", "p", 1)]))
    with pytest.raises(InputError, match=r"valid \+ test below 1, got 0\.5 and 0\.5"):
        GlobalTime(valid=0.5, test=0.5)
    with pytest.raises((InputError, TypeError), match="targets"):  # the type check of the tests may speak first
        GlobalTime(targets="none")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown protocol 'leave-1-out': did you mean 'leave-one-out'"):
        split(log_of(ROWS), "leave-1-out")
