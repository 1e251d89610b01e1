"""Sessions: event by event the same answers as encoding the whole history, at a cost that does not grow."""

import datetime as dt
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support import tiny

from prism.errors import InputError
from prism.recommend.data.logs import read_log
from prism.recommend.data.splits import split
from prism.recommend.live.user_bytes import unpack_user
from prism.recommend.recommender import Recommender


def untrained(mixer: str = "prism", **fields: object) -> Recommender:
    config = replace(tiny.CONFIG, mixer=mixer, heads=2, **fields)
    made = Recommender._untrained(split(tiny.log(), config.protocol), config)
    made.model.double()
    return made


HISTORY = [3, 9, 4, 4, 31, 7, 12, 40, 3, 22]
TIMES = [100, 100, 260, 5_000, 5_001, 90_000, 90_100, 91_000, 91_000, 10**6]


@pytest.mark.parametrize("mixer", ["prism", "gated-deltanet", "linear-attention", "sasrec", "hstu"])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("begin", [0, 1, 6])
def test_events_one_by_one_give_the_scores_of_the_whole_history(mixer: str, timed: bool, begin: int) -> None:
    made = untrained(mixer, time_gaps=timed, query_time=timed)
    session = made.session(history=HISTORY[:begin], times=TIMES[:begin])
    for n in range(begin, len(HISTORY) + 1):
        at = TIMES[n - 1] + 50 if n else 0
        if n % 2:  # asking or not asking in between must not matter
            ours = session.recommend(k=50, exclude_seen=False, at=at)
            whole = made.recommend(history=HISTORY[:n], times=TIMES[:n], k=50, exclude_seen=False, at=at)
            assert [one.item for one in ours] == [one.item for one in whole]
            np.testing.assert_allclose([one.score for one in ours], [one.score for one in whole], rtol=1e-9, atol=1e-12)
        if n < len(HISTORY):
            session.update(HISTORY[n], TIMES[n])
    assert session.length == len(HISTORY)


def test_a_limited_context_slides_along() -> None:
    made = untrained(context=4)
    session = made.session(history=HISTORY[:2])
    for item in HISTORY[2:]:
        session.update(item)
    assert [one.item for one in session.recommend()] == [one.item for one in made.recommend(history=HISTORY)]


def test_a_session_of_a_user_starts_where_the_log_ends() -> None:
    made = untrained()
    assert [one.item for one in made.session(5).recommend()] == [one.item for one in made.recommend(5)]


@pytest.mark.parametrize("baseline", [None, "item-knn", "session-knn", "repeat-last"])
@pytest.mark.parametrize(
    "fields", [{}, {"time_gaps": True, "query_time": True}, {"context": 3}, {"mixer": "sasrec"}], ids=str
)
def test_what_the_model_does_not_know_is_no_event_to_a_session_nor_to_recommend(
    baseline: str | None, fields: dict
) -> None:
    made = untrained(**fields)
    if baseline is not None:
        made = made.with_baseline(baseline)
    last = int(made.log.times[made.log.offsets[1] - 1])
    times = [last + 10, last + 20, last + 30, last + 10**5]
    events = pl.DataFrame({"user": [0] * 4, "item": ["5", "new", "9", "newer"], "time": times})
    made = made.with_events(read_log(events, later=True))
    for at in (None, last + 10**6):
        whole = made.recommend(0, k=50, exclude_seen=False, at=at)
        ours = {one.item: one.score for one in made.session(0).recommend(k=50, exclude_seen=False, at=at)}
        np.testing.assert_allclose([ours[one.item] for one in whole], [one.score for one in whole], rtol=1e-6)


def test_an_answer_asked_for_before_the_last_event_is_one_asked_for_at_it() -> None:
    made = untrained(time_gaps=True, query_time=True)
    session = made.session(history=HISTORY, times=TIMES)
    for early in (TIMES[-1] - 1, 0):
        whole = made.recommend(history=HISTORY, times=TIMES, at=early)
        assert whole == made.recommend(history=HISTORY, times=TIMES, at=TIMES[-1])
        assert [one.item for one in session.recommend(at=early)] == [one.item for one in whole]


def test_a_model_is_ready_to_answer_without_dropout(tmp_path: Path) -> None:
    made = Recommender.fit(tiny.log(), tiny.CONFIG, epochs=1, out=tmp_path / "run", progress=False)
    assert not made.model.training  # threads that ask at once would meet one that is
    assert not Recommender.load(tmp_path / "run").model.training


def test_an_item_taken_in_a_session_is_not_recommended_again() -> None:
    session = untrained().session()
    first = session.recommend()[0].item
    session.update(first)
    assert first not in [one.item for one in session.recommend(k=50)]


def test_an_unknown_item_changes_nothing_and_is_named() -> None:
    session = untrained().session(history=HISTORY)
    before = session.recommend()
    with pytest.warns(UserWarning, match="item 'zzz' is unknown to the model and was skipped"):
        assert not session.update("zzz")
    assert session.recommend() == before


def test_an_event_costs_the_same_after_ten_events_and_after_ten_thousand() -> None:
    made = untrained()
    made.model.float()
    rng = np.random.default_rng(0)
    medians = {}
    for length in (10, 10_000):
        session = made.session(history=rng.integers(50, size=length).tolist())
        clock = []
        for item in rng.integers(50, size=60).tolist():
            start = time.process_time()
            session.update(item)
            session.recommend()
            clock.append(time.process_time() - start)
        medians[length] = statistics.median(clock)
    assert medians[10_000] < 2 * medians[10]
    *state, features = unpack_user(session.state(), made).arrays
    assert sum(part.size for part in state) == made.model.backbone.state_size()
    assert np.isfinite(features).all()


def test_the_time_of_an_event_is_seconds_or_a_datetime_and_never_goes_back() -> None:
    made = untrained("prism", time_gaps=True)
    moment = dt.datetime(2024, 2, 29, 13, 45, 6)
    second = int(moment.replace(tzinfo=dt.UTC).timestamp())
    for same in (second, second + 0.5, moment, moment.replace(tzinfo=dt.UTC), np.datetime64(moment), np.int64(second)):
        session, plain = made.session(history=[3], times=[second - 9]), made.session(history=[3], times=[second - 9])
        session.update(5, same)
        plain.update(5, second)
        assert session.recommend() == plain.recommend()
    for wrong, why in (
        (second * 1000, "is not in seconds since 1970"),
        (second - 1, "is before the last event's"),
        (float("nan"), "is not a time"),
    ):
        with pytest.raises(InputError, match=why):
            session.update(5, wrong)
    assert session.length == 2
    with pytest.raises(InputError, match="is not in seconds since 1970"):
        made.recommend(history=[3], times=[second * 1000])
    with pytest.raises(InputError, match="times go back after event 1"):
        made.recommend(history=[3, 4], times=[5, 4])
