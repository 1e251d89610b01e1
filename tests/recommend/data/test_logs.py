"""Reading a log: any ids, any clock, any file; events of equal time stay in the order of the source."""

import datetime as dt
import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import InputError
from prism.recommend.data.log import Log
from prism.recommend.data.logs import read_log
from prism.recommend.data.synthetic import synthetic_log

ROWS = [("b", "x", 30), ("a", "y", 20), ("a", "x", 10), ("b", "z", 5), ("a", "z", 20)]
CSV = "user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in ROWS)


def as_lists(log: Log) -> dict[object, list[object]]:
    return {id_: [log.item_ids[code] for code in log.history(user)] for user, id_ in enumerate(log.user_ids.tolist())}


EXPECTED = {"a": ["x", "y", "z"], "b": ["z", "x"]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.csv", CSV),
        ("log.tsv", CSV.replace(",", "\t")),
        ("log.txt", CSV.replace(",", ";")),
        ("log.dat", CSV.replace(",", "|")),
        ("quoted.csv", CSV.replace("x", '"x"')),
        ("log.inter", CSV.replace("user", "user_id:token").replace("time", "timestamp:float").replace(",", "\t")),
        ("log.jsonl", "".join(f'{{"user":"{u}","item":"{i}","time":{t}}}\n' for u, i, t in ROWS)),
    ],
)
def test_every_text_format_gives_the_same_log(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert as_lists(read_log(tmp_path / name)) == EXPECTED
    (tmp_path / (name + ".gz")).write_bytes(gzip.compress(text.encode()))
    assert as_lists(read_log(tmp_path / (name + ".gz"))) == EXPECTED


def test_parquet_and_data_frames_give_the_same_log(tmp_path: Path) -> None:
    frame = pl.DataFrame(ROWS, schema=["user", "item", "time"], orient="row")
    frame.write_parquet(tmp_path / "log.parquet")
    for source in (tmp_path / "log.parquet", str(tmp_path / "log.parquet"), frame, frame.lazy()):
        assert as_lists(read_log(source)) == EXPECTED


def test_pandas_frames_are_read_and_mixed_ids_become_text() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(ROWS, columns=["user", "item", "time"])
    assert as_lists(read_log(frame)) == EXPECTED
    frame["time"] = pd.to_datetime(frame["time"], unit="s", utc=True)
    assert as_lists(read_log(frame)) == EXPECTED
    mixed = pd.DataFrame({"user": ["a", "a", 7, 7], "item": [1, 2, 1, 2], "time": [1, 2, 3, 4]})
    assert as_lists(read_log(mixed)) == {"7": [1, 2], "a": [1, 2]}


def test_many_files_are_one_log_whether_named_by_folder_pattern_or_list(tmp_path: Path) -> None:
    lines = CSV.splitlines()
    (tmp_path / "1.csv").write_text("\n".join(lines[:3]))
    (tmp_path / "2.csv").write_text("\n".join([lines[0], *lines[3:]]))
    both = [tmp_path / "1.csv", str(tmp_path / "2.csv")]
    for source in (tmp_path, str(tmp_path / "*.csv"), both):
        assert as_lists(read_log(source)) == EXPECTED


def test_files_that_disagree_on_the_type_of_an_id_are_joined_as_text(tmp_path: Path) -> None:
    pl.DataFrame({"user": [1, 1], "item": [5, 6], "time": [1, 2]}).write_parquet(tmp_path / "1.parquet")
    pl.DataFrame({"user": [1, 1], "item": ["5", "B"], "time": [3, 4]}).write_parquet(tmp_path / "2.parquet")
    pl.DataFrame({"user": [2, 2], "item": ["5", "B"], "time": [3, 4]}).write_parquet(tmp_path / "3.parquet")
    assert as_lists(read_log(tmp_path)) == {1: ["5", "6", "5", "B"], 2: ["5", "B"]}


def test_ids_keep_their_type_and_leading_zeros_and_sort_by_value(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,time\n10,007,1\n9,7,1\n10,7,2\n")
    log = read_log(tmp_path / "log.csv")
    assert log.user_ids.tolist() == [9, 10]
    assert log.item_ids.tolist() == ["007", "7"]
    assert (log.user_code("10"), log.user_code(10), log.item_code("007")) == (1, 1, 0)
    assert log.item_codes(["7", "none", 7]).tolist() == [1, -1, 1]
    with pytest.raises(InputError, match=r"user 11 is not in .*9, 10"):
        log.user_code(11)


def test_an_id_column_that_turns_to_text_after_many_numbers_is_read_whole(tmp_path: Path) -> None:
    rows = [f"{n % 7},{n % 50},{n}" for n in range(20_000)] + ["3,85123A,20001"]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,time", *rows]))
    assert "85123A" in read_log(tmp_path / "log.csv").item_ids


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=60))
def test_events_are_sorted_by_user_and_time_and_ties_stay_in_file_order(rows: list[tuple[int, int, int]]) -> None:
    rows = [*rows, (0, 8, 2), (0, 9, 2), (1, 8, 2)]
    log = read_log(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"))
    for user in log.user_ids.tolist():
        mine = sorted((row for row in rows if row[0] == user), key=lambda row: row[2])  # Python's sort is stable
        code = log.user_code(user)
        span = slice(log.offsets[code], log.offsets[code + 1])
        assert log.item_ids[log.items[span]].tolist() == [row[1] for row in mine]
        assert log.times[span].tolist() == [row[2] for row in mine]


def test_huge_ids_and_finer_clocks_still_sort_right() -> None:
    big = 2**62
    rows = [(big, 1, 1_700_000_000_000_900), (0, 1, 1), (big, 2, 1_700_000_000_000_100), (0, 2, 2_000_000_000_000_000)]
    log = read_log(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"))
    assert as_lists(log) == {0: [1, 2], big: [2, 1]}  # both in one second: the microseconds decide
    assert log.times[2:].tolist() == [1_700_000_000, 1_700_000_000]


MOMENT = dt.datetime(2024, 2, 29, 13, 45, 6)
SECONDS = int(MOMENT.replace(tzinfo=dt.UTC).timestamp())
DAY = SECONDS // 86_400 * 86_400


@pytest.mark.parametrize(
    ("time", "seconds", "said"),
    [
        (SECONDS, SECONDS, "seconds"),
        (SECONDS * 10**3 + 7, SECONDS, "milliseconds"),
        (SECONDS * 10**6, SECONDS, "microseconds"),
        (SECONDS * 10**9, SECONDS, "nanoseconds"),
        (SECONDS + 0.5, SECONDS, "seconds"),
        (SECONDS * 1e3, SECONDS, "milliseconds"),
        (-86_400, -86_400, "seconds"),
        (20240229, DAY, "YYYYMMDD"),
        (MOMENT, SECONDS, "dates and times"),
        (MOMENT.replace(tzinfo=dt.UTC), SECONDS, "dates and times"),
        (MOMENT.date(), DAY, "dates"),
        (str(SECONDS), SECONDS, "seconds"),
        (f"{SECONDS}.25", SECONDS, "seconds"),
        ("2024-02-29", DAY, "%Y-%m-%d"),
        ("2024-02-29 13:45:06", SECONDS, "%H:%M:%S"),
        ("2024-02-29T13:45:06.123456", SECONDS, "T%H"),
        ("2024-02-29T13:45:06Z", SECONDS, "z"),
        ("2024-02-29T15:45:06+02:00", SECONDS, "z"),
        ("2024-02-29 13:45:06 UTC", SECONDS, "UTC"),
        ("2024-02-29 13:45", SECONDS - 6, "%H:%M"),
        ("2/29/2024 13:45", SECONDS - 6, "%m/%d/%Y"),
        ("2/29/24", DAY, "%m/%d/%y"),
        ("29/02/2024", DAY, "%d/%m/%Y"),
        ("29.02.2024 13:45:06", SECONDS, "%d.%m.%Y"),
        ("02/29/2024 01:45:06 PM", SECONDS, "%p"),
        ("02 29, 2024", DAY, "%m %d, %Y"),
        ("Feb 29, 2024", DAY, "%b"),
        ("29 February 2024", DAY, "%"),
        ("Thu, 29 Feb 2024 13:45:06 +0000", SECONDS, "%a"),
        ("Thu Feb 29 13:45:06 +0000 2024", SECONDS, "%a"),
    ],
)
def test_a_time_in_any_common_form_is_understood_and_the_form_stated(time: object, seconds: int, said: str) -> None:
    log = read_log(pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 2], "time": [time] * 3}))
    assert log.times.tolist() == [seconds] * 3
    assert said in log.notes[1]


def test_one_day_before_the_thirteenth_reads_as_month_first_and_says_so() -> None:
    log = read_log(pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 2], "time": ["02/03/2024"] * 3}))
    assert dt.datetime.fromtimestamp(log.times[0], dt.UTC).month == 2
    assert "%m/%d/%Y" in log.notes[1]


@pytest.mark.parametrize("names", [("CustomerID", "StockCode", "InvoiceDate"), ("userId", "movieId", "timestamp")])
def test_columns_are_guessed_from_common_names(names: tuple[str, str, str]) -> None:
    frame = pl.DataFrame(ROWS, schema=list(names), orient="row").with_columns(rating=pl.lit(3))
    log = read_log(frame)
    assert as_lists(log) == EXPECTED
    assert names[0] in log.notes[0]


def test_named_columns_win_over_guesses() -> None:
    frame = pl.DataFrame(ROWS, schema=["kind", "item", "time"], orient="row").with_columns(user=pl.lit("u"))
    assert as_lists(read_log(frame, user="kind")) == EXPECTED


def test_the_frame_of_a_log_reads_back_as_the_same_log() -> None:
    log = synthetic_log(20, 30, 400, seed=1)
    again = read_log(log.frame())
    for name in ("offsets", "items", "times", "user_ids", "item_ids"):
        np.testing.assert_array_equal(getattr(log, name), getattr(again, name))


def test_a_synthetic_log_has_exactly_the_asked_size_and_depends_on_its_seed() -> None:
    log, other = synthetic_log(50, 200, 1000, seed=0), synthetic_log(50, 200, 1000, seed=1)
    assert (log.n_users, log.n_events, int((log.item_counts() > 0).sum())) == (50, 1000, 200)
    assert log.lengths.min() >= 2
    assert (np.diff(log.times)[np.diff(log.users) == 0] >= 0).all()
    np.testing.assert_array_equal(log.items, synthetic_log(50, 200, 1000, seed=0).items)
    assert (log.items != other.items).any()


def test_a_filter_by_user_length_keeps_exactly_the_long_users_and_their_items() -> None:
    rows = [("long", n, n) for n in range(5)] + [("short", n, n) for n in (1, 99)]
    log = read_log(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")).with_min_user_events(3)
    assert as_lists(log) == {"long": [0, 1, 2, 3, 4]}
    with pytest.raises(InputError, match=r"no user .* has 9 events, the most is 5"):
        log.with_min_user_events(9)


def test_recoding_moves_names_and_features_with_their_items() -> None:
    log = read_log(pl.DataFrame(ROWS, schema=["user", "item", "time"], orient="row"))
    named = Log(
        **{k: getattr(log, k) for k in ("offsets", "items", "times", "user_ids", "item_ids")},
        item_names=np.array(["ex", "why", "zed"], dtype=object),
        item_features=pl.DataFrame({"n": [0, 1, 2]}),
    )
    turned = named.recoded(users=np.array([1, 0]), items=np.array([2, 0]))
    assert as_lists(turned) == {"b": ["z", "x"], "a": ["x", "z"]}
    assert turned.item_names is not None
    assert turned.item_names.tolist() == ["zed", "ex"]
    assert turned.item_features is not None
    assert turned.item_features["n"].to_list() == [2, 0]
