"""Later events join a log in the way that it was read."""

from pathlib import Path

import polars as pl
import pytest

from prism.errors import InputError
from prism.recommend.data.logs import read_log
from prism.recommend.data.merge import merge


@pytest.fixture
def untimed(tmp_path: Path) -> Path:
    (tmp_path / "first.csv").write_text("who,what\n1,5\n1,6\n2,5\n2,7\n")
    (tmp_path / "later.csv").write_text("who,what\n1,5\n1,5\n3,6\n")
    return tmp_path


NAMES = {"user": "who", "item": "what"}


def test_events_after_a_log_without_times_need_none(untimed: Path) -> None:
    log = read_log(untimed / "first.csv", time="none", **NAMES)
    later = read_log(untimed / "later.csv", later=True, usual=log.columns)
    assert later.n_events == 3
    assert any("without times" in note for note in later.notes)
    for usual in ({}, {"name": "title"}):  # columns that are not known do not say that there are no times
        with pytest.raises(InputError, match="no time column found"):
            read_log(untimed / "later.csv", later=True, usual=usual, **NAMES)
    timed = pl.DataFrame({"who": [1], "what": [5], "when": [9]})
    assert read_log(timed, time="when", later=True, usual=log.columns).times.tolist() == [9]


def test_without_times_every_later_event_is_new(untimed: Path) -> None:
    log = read_log(untimed / "first.csv", time="none", **NAMES)
    later = read_log(untimed / "later.csv", time="none", later=True, **NAMES)
    merged = merge(log, later)
    assert merged.known == 0
    assert [merged.log.item_ids[merged.log.history(user)].tolist() for user in range(3)] == [[5, 6, 5, 5], [5, 7], [6]]
    assert merged.new.tolist() == [False, False, True, True, False, False, True]


def test_a_later_event_that_the_log_has_is_not_taken_twice() -> None:
    log = read_log(pl.DataFrame({"user": [1, 1, 2, 2], "item": [5, 6, 5, 7], "time": [1, 2, 3, 4]}))
    later = read_log(pl.DataFrame({"user": [1, 1, 1], "item": [6, 6, 5], "time": [2, 2, 9]}), later=True)
    merged = merge(log, later)
    assert merged.known == 1
    assert merged.log.history(0).tolist() == [0, 1, 1, 0]
