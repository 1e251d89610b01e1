"""Many live users in one pool: each as if alone, bit by bit, whoever else is there and from whatever thread."""

import datetime as dt
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny

from prism.errors import InputError
from prism.recommend.data.splits import split
from prism.recommend.live.pool import SessionPool
from prism.recommend.recommender import Recommender


def untrained(mixer: str = "prism", **fields: Any) -> Recommender:
    config = replace(tiny.CONFIG, mixer=mixer, heads=2, **fields)
    return Recommender._untrained(split(tiny.log(), config.protocol), config)


def events(seed: int, users: int = 12, count: int = 150) -> list[tuple[int, int, int]]:
    rng = np.random.default_rng(seed)
    who, what = rng.integers(users, size=count).tolist(), rng.integers(50, size=count).tolist()
    return list(zip(who, what, np.cumsum(rng.integers(1, 5000, size=count)).tolist(), strict=True))


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("prism", {}),
    ("prism", {"time_gaps": True, "query_time": True, "layers": 2}),
    ("gated-deltanet", {"item_bias": True}),
    ("mamba2", {"time_gaps": True, "projection": True}),
    ("sasrec", {}),
]


@pytest.mark.parametrize(("mixer", "fields"), KINDS, ids=str)
def test_shuffled_batches_of_many_users_are_each_users_own_session_bit_by_bit(mixer: str, fields: dict) -> None:
    made = untrained(mixer, **fields)
    pool, alone = SessionPool(made, 20), {user: made.session() for user in range(12)}
    rng = np.random.default_rng(1)
    left = events(0)
    while left:
        size = int(rng.integers(1, 40))
        batch, left = left[:size], left[size:]
        place = rng.permutation(12)
        by_user = sorted(batch, key=lambda event, place=place: place[event[0]])  # a user's own order stays
        pool.update(*map(list, zip(*by_user, strict=True)))
        for user, item, time in batch:
            alone[user].update(item, time)
    order = rng.permutation(12).tolist()
    at = None if not fields.get("query_time") else 10**7
    ours = pool.recommend(order, k=8, at=at)
    for user, found in zip(order, ours, strict=True):
        exact = mixer in ("prism", "gated-deltanet")  # the others go through PyTorch's products, which batch
        if exact:
            assert pool.state(user) == alone[user].state()
        wanted = alone[user].recommend(8, at=at)
        assert [one.item for one in found] == [one.item for one in wanted]
        np.testing.assert_allclose([one.score for one in found], [one.score for one in wanted], rtol=1e-4, atol=1e-5)


def test_threads_that_update_and_ask_at_once_leave_every_state_as_if_alone() -> None:
    made = untrained()
    pool = SessionPool(made, 64)
    streams = [[(user + 100 * n, item, time) for user, item, time in events(n)] for n in range(4)]
    errors: list[BaseException] = []

    def work(stream: list[tuple[int, int, int]]) -> None:
        try:
            for start in range(0, len(stream), 7):
                part = stream[start : start + 7]
                pool.update(*map(list, zip(*part, strict=True)))
                pool.recommend([part[0][0], "somebody new"])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for stream in streams:
        for user in {user for user, _, _ in stream}:
            session = made.session()
            for _, item, time in (event for event in stream if event[0] == user):
                session.update(item, time)
            assert pool.state(user) == session.state()


def test_someone_new_takes_the_place_of_nobody_in_the_same_batch() -> None:
    made = untrained()
    pool, alone = SessionPool(made, 3), made.session()
    for user in ("a", "b", "c"):  # a is idle longest
        pool.update([user], [3], [10])
    alone.update(3, 10)
    pool.update(["new", "a"], [7, 9], [20, 20])
    alone.update(9, 20)
    assert pool.state("a") == alone.state()
    assert "new" in pool
    assert "b" not in pool


@pytest.mark.parametrize(("mixer", "fields"), KINDS, ids=str)
def test_a_state_moves_between_sessions_and_pools_and_goes_on(mixer: str, fields: dict) -> None:
    made = untrained(mixer, **fields)
    stream = [(item, time) for _, item, time in events(3, count=12)]
    session = made.session(history=[item for item, _ in stream[:7]], times=[time for _, time in stream[:7]])
    pool = SessionPool(made, 4)
    pool.restore("u", session.state())
    again = made.session(state=pool.state("u"))
    assert again.length == pool.length("u") == 7
    for item, time in stream[7:]:
        session.update(item, time)
        again.update(item, time)
        pool.update(["u"], [item], [time])
    wanted = [one.item for one in session.recommend(8, at=10**8)]
    assert [one.item for one in again.recommend(8, at=10**8)] == wanted
    assert [one.item for one in pool.recommend(["u"], 8, at=10**8)[0]] == wanted
    fresh = made.session(state=made.session().state())
    assert [one.item for one in fresh.recommend()] == [one.item for one in made.session().recommend()]


def test_a_state_holds_one_user_alone_and_has_a_fixed_size() -> None:
    made = untrained()
    pool = SessionPool(made, 8)
    pool.update(["a", "b"], [3, 9], [10, 10])
    alone = pool.state("a")
    pool.update(["b"] * 30, list(range(30)), [11] * 30)
    assert pool.state("a") == alone
    few, many = made.session(history=[1, 2]), made.session(history=[1, 2] * 500)
    assert len(few.state()) == len(many.state())


@pytest.mark.parametrize("bad", [b"", b"nothing of the kind", bytes(64), b"\x80\x04K\x01."], ids=repr)
def test_bytes_that_are_no_state_are_refused(bad: bytes) -> None:
    made = untrained()
    with pytest.raises(InputError, match="the state cannot be read"):
        SessionPool(made, 2).restore("u", bad)


def test_a_state_of_another_model_is_refused() -> None:
    other = untrained()
    with torch.no_grad():
        other.model.embedding.weight[0] += 1
    state = other.session(history=[1, 2]).state()
    with pytest.raises(InputError, match="build it again from the user's events"):
        untrained().session(state=state)


def test_a_full_pool_forgets_whoever_was_idle_longest_and_starts_the_next_afresh() -> None:
    made, gone = untrained(), []
    pool = SessionPool(made, 2, evicted=gone.append)
    pool.update(["a", "b"], [1, 2])
    pool.recommend(["a"])
    pool.update(["c"], [3])
    assert gone == ["b"]
    assert "b" not in pool
    assert len(pool) == 2
    session = made.session()
    session.update(3)
    assert pool.state("c") == session.state()
    assert pool.drop("c")
    assert not pool.drop("c")
    assert pool.length("c") == 0


def test_a_batch_larger_than_the_pool_is_taken_in_rounds() -> None:
    pool = SessionPool(untrained(), 3)
    assert pool.update(list(range(10)), [1] * 10) == [True] * 10
    assert len(pool) == 3


def test_unknown_items_are_told_and_change_nothing() -> None:
    pool = SessionPool(untrained(), 4)
    pool.update(["a"], [3])
    before = pool.state("a")
    assert pool.update(["a", "a"], ["zzz", 10**9]) == [False, False]
    assert pool.state("a") == before


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (1_700_000_000_000, "is not in seconds since 1970, as it should be: divide milliseconds by 1000"),
        (1_699_999_999, "is before the last event's, 1700000000"),
        (float("nan"), "nan is not a time: give seconds since 1970, or a datetime"),
    ],
)
def test_a_time_that_cannot_be_is_refused_before_anything_changes(time: object, message: str) -> None:
    pool = SessionPool(untrained(time_gaps=True), 4)
    first = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    assert pool.update(["ann"], [3], [first]) == [True]
    assert pool.latest("ann") == 1_700_000_000
    before = pool.state("ann")
    with pytest.raises(InputError, match=message):
        pool.update(["bob", "ann"], [3, 4], [1_700_000_000, time])
    assert pool.state("ann") == before
    assert "bob" not in pool
