"""Reading a log: any ids, any clock, any file; events of equal time stay in the order of the source."""

import bz2
import datetime as dt
import gzip
import json
import time
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import InputError
from prism.recommend.data.log import Log
from prism.recommend.data.logs import read_log
from prism.recommend.data.splits import split
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


def test_one_id_that_is_no_number_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    """In a text file: what is written as a number is one, whatever stands beside it."""
    (tmp_path / "log.csv").write_text("user,item,time\n10,7,1\n10,B7,2\n9,7,1\n9,007,3\nx,12,4\nx,7,5\n")
    log = read_log(tmp_path / "log.csv")
    assert log.user_ids.tolist() == [9, 10, "x"]
    assert log.item_ids.tolist() == [7, 12, "007", "B7"]
    assert as_lists(log) == {9: [7, "007"], 10: [7, "B7"], "x": [12, 7]}
    assert log.user_code(9) == log.user_code("9") == 0
    assert log.item_code("007") == 2
    assert log.frame()["item"].to_list() == ["7", "007", "7", "B7", "12", "7"]  # a column has one type


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


@pytest.mark.parametrize("other", [pl.Int64, pl.Int32, pl.String])
def test_an_id_is_one_whether_a_file_has_it_as_a_whole_number_or_as_a_float(tmp_path: Path, other: type) -> None:
    whole = {"user": pl.Series([7, 7, 8]).cast(other), "item": [1, 2, 1], "time": [1, 2, 3]}
    with_a_gap = {"user": [7.0, 8.0, None], "item": [1, 2, 1], "time": [4, 5, 6]}
    for name, rows in (("1.parquet", whole), ("2.parquet", with_a_gap)):
        pl.DataFrame(rows).write_parquet(tmp_path / name)
    log = read_log(tmp_path, drop_nulls=True)
    assert log.user_ids.tolist() == (["7", "8"] if other is pl.String else [7, 8])
    assert log.lengths.tolist() == [3, 2]
    pl.DataFrame(with_a_gap | {"user": [7.5, 8.0, None]}).write_parquet(tmp_path / "2.parquet")
    with pytest.raises(InputError, match=r"user column of .*2.parquet holds 7.5: an id is a whole number or text"):
        read_log(tmp_path, drop_nulls=True)


def test_ids_keep_their_type_and_leading_zeros_and_sort_by_value(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,time\n10,007,1\n9,7,1\n10,7,2\n")
    log = read_log(tmp_path / "log.csv")
    assert log.user_ids.tolist() == [9, 10]
    assert log.item_ids.tolist() == [7, "007"]
    assert (log.user_code("10"), log.user_code(10), log.item_code("007")) == (1, 1, 1)
    assert log.item_codes(["7", "none", 7]).tolist() == [0, -1, 0]
    with pytest.raises(InputError, match=r"user 11 is not in .*9, 10"):
        log.user_code(11)


def test_an_id_with_two_signs_is_text(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,time\n--5,1,1\n--5,2,2\n-5,1,3\n")
    assert read_log(tmp_path / "log.csv").user_ids.tolist() == [-5, "--5"]


def test_line_separators_inside_a_name_do_not_end_the_line_of_a_log(tmp_path: Path) -> None:
    names = ["a\u2028b", "c\u0085d"]
    for file in ("log.jsonl", "log.csv", "log.dat"):
        rows = [(user, names[n], n + 1) for user in ("x", "y") for n in range(2)]
        line = {
            "log.jsonl": '{{"user": "{}", "item": "{}", "time": {}}}',
            "log.csv": "{},{},{}",
            "log.dat": "{}::{}::{}",
        }[file]
        head = [] if file == "log.jsonl" else [line.format("user", "item", "time")]
        (tmp_path / file).write_text("\n".join([*head, *(line.format(*row) for row in rows)]) + "\n", encoding="utf-8")
        log = read_log(tmp_path / file)
        assert (sorted(log.item_ids), log.n_events) == (names, 4), file


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


def packed(kind: str, content: bytes, tmp_path: Path) -> bytes:
    if kind == "gz":
        return gzip.compress(content)
    if kind == "bz2":
        return bz2.compress(content)
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "made", "w") as archive:
            archive.writestr("folder/log.csv", content)
            archive.writestr("README.md", "about")
        return (tmp_path / "made").read_bytes()
    frame = b"\x28\xb5\x2f\xfd\xa0" + len(content).to_bytes(4, "little")  # zstd: one raw block
    return frame + (1 | len(content) << 3).to_bytes(3, "little") + content


JSON_ROWS = [{"user": u, "item": i, "time": t} for u, i, t in ROWS]


@pytest.mark.parametrize("kind", ["gz", "bz2", "zip", "zst"])
@pytest.mark.parametrize(
    "text", [CSV, "".join(json.dumps(row) + "\n" for row in JSON_ROWS), json.dumps(JSON_ROWS, indent=1)]
)
def test_packed_files_give_the_same_log_whatever_they_hold(tmp_path: Path, kind: str, text: str) -> None:
    (tmp_path / f"log.csv.{kind}").write_bytes(packed(kind, text.encode(), tmp_path))
    assert as_lists(read_log(tmp_path / f"log.csv.{kind}")) == EXPECTED


def test_damaged_packed_files_and_zips_of_many_tables_are_refused_in_one_line(tmp_path: Path) -> None:
    for kind in ("gz", "bz2", "zip", "zst"):
        (tmp_path / "log.csv").write_bytes(packed(kind, CSV.encode(), tmp_path)[:12])
        with pytest.raises(InputError, match="cannot read") as error:
            read_log(tmp_path / "log.csv")
        assert "\n" not in str(error.value)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("1.csv", CSV)
        archive.writestr("2.csv", CSV)
    with pytest.raises(InputError, match="holds 2 tables: unpack it"):
        read_log(tmp_path / "two.zip")


@pytest.mark.parametrize("head", ["", "user::item::rating::time\n"])
def test_files_with_double_colons_are_read_under_any_name(tmp_path: Path, head: str) -> None:
    for name in ("ratings.dat", "mine.txt", "mine.csv"):
        (tmp_path / name).write_text(head + "".join(f"{u}::{i}::5::{t}\n" for u, i, t in ROWS))
        assert as_lists(read_log(tmp_path / name)) == EXPECTED


def test_ids_of_a_source_with_types_keep_them(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": ["1", "1", "2"], "item": [7, 8, 7], "time": [1, 2, 3]})
    frame.write_parquet(tmp_path / "log.parquet")
    for source in (frame, tmp_path / "log.parquet"):
        log = read_log(source)
        assert log.user_ids.tolist() == ["1", "2"]
        assert log.item_ids.tolist() == [7, 8]
        assert log.user_code(2) == log.user_code("2") == 1


def test_unsigned_ids_beyond_the_signed_ones_keep_their_value() -> None:
    large = 2**64 - 2
    for ids in ([large, large + 1, large], [1, large, 1]):
        users = pl.Series("user", ids, dtype=pl.UInt64)
        log = read_log(pl.DataFrame({"user": users, "item": [1, 2, 2], "time": [1, 2, 3]}))
        assert log.user_ids.tolist() == sorted(set(ids))
        assert log.history(log.user_code(ids[0])).tolist() == [0, 1]
        assert log.user_code(str(large)) == log.user_code(large)
        assert log.frame()["user"].to_list() == sorted(ids)


def test_floats_that_hold_no_exact_id_are_refused() -> None:
    frame = pl.DataFrame({"user": [1e19, 1e19, 2.0], "item": [1, 2, 3], "time": [1, 2, 3]})
    with pytest.raises(InputError, match="as a float, which is not exact"):
        read_log(frame)


def test_events_without_a_user_item_or_time_are_dropped_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(CSV + ",x,7\na,,7\na,x,\n")
    with pytest.raises(InputError, match="drop_nulls="):
        read_log(tmp_path / "log.csv")
    log = read_log(tmp_path / "log.csv", drop_nulls=True)
    assert as_lists(log) == EXPECTED
    assert "3 of 8 events dropped: no user, item or time" in log.notes


def test_a_form_of_time_that_is_given_is_used(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,time\na,x,2/1/2024\na,y,1/2/2024\nb,x,3/1/2024\n")
    assert as_lists(read_log(tmp_path / "log.csv"))["a"] == ["y", "x"]  # month before day, as the note says
    log = read_log(tmp_path / "log.csv", time_format="%d/%m/%Y")
    assert as_lists(log)["a"] == ["x", "y"]
    with pytest.raises(InputError, match="'2/1/2024' is not a time; it is not of the form time_format='%Y'"):
        read_log(tmp_path / "log.csv", time_format="%Y")
    with pytest.raises(InputError, match="not text: time_format='%Y' is for text"):
        read_log(pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 2], "time": [1, 2, 3]}), time_format="%Y")


@pytest.mark.parametrize("odd", [1_700_000_000, 1_700_000_000_000_000])
def test_times_in_two_units_are_refused(odd: int) -> None:
    times = [1_700_000_000_000, 1_700_000_001_000, odd]
    with pytest.raises(InputError, match="1 of 3 times are in another unit than the milliseconds of most"):
        read_log(pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 2], "time": times}))


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_ties_in_time_keep_the_order_of_the_files_under_both_engines(tmp_path: Path, engine: str) -> None:
    rng = np.random.default_rng(0)
    rows = pl.DataFrame({"user": rng.integers(0, 5, 30_000), "item": np.arange(30_000), "time": 7})
    for n in range(3):
        rows[n * 10_000 : (n + 1) * 10_000].write_csv(tmp_path / f"{n}.csv")
    kinds = pl.LazyFrame({"item": rng.permutation(30_000), "kind": np.arange(30_000)})
    with pl.Config() as config:
        config.set_engine_affinity(engine)
        for source in (tmp_path, rows.lazy().join(kinds, on="item", how="left")):
            log = read_log(source)
            assert all((np.diff(log.item_ids[log.history(user)]) > 0).all() for user in range(5))


def test_a_million_rows_of_pandas_are_read_in_seconds() -> None:
    pd = pytest.importorskip("pandas")
    n = 1_000_000
    frame = pd.DataFrame({"user": np.arange(n) % 1000, "item": [f"i{k % 99}" for k in range(n)], "time": np.arange(n)})
    started = time.perf_counter()
    log = read_log(frame)
    assert time.perf_counter() - started < 8  # it was 15 s where there is no pyarrow
    assert log.n_events == n


def test_pandas_columns_with_gaps_zones_categories_and_mixed_values_are_read() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "user": pd.Series(["a", "a", None], dtype="category"),
            "item": pd.Series([1, 2, None], dtype="Int64"),
            "time": pd.to_datetime([0, 60, 90], unit="s", utc=True).tz_convert("Europe/Berlin"),
        }
    )
    frame = pd.concat([frame, pd.DataFrame({"user": ["b"], "item": [2], "time": [frame["time"][0]]})])
    log = read_log(frame, drop_nulls=True)
    assert as_lists(log) == {"a": [1, 2], "b": [2]}
    assert log.times.tolist() == [0, 60, 0]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a,x,5.0,1300000000\na,y,4.0,1300000001\nb,x,5.0,1300000002\n", {}),
        ("a\tx\t2011-03-13\na\ty\t2011-03-14\nb\tx\t2011-03-15\n", {}),
        ("2011-03-13;0.5;x;9;a\n2011-03-14;0.5;y;9;a\n2011-03-15;0.5;x;9;b\n", {"user": "5", "item": "3", "time": "1"}),
    ],
)
def test_a_file_without_a_header_is_read_by_the_places_of_its_columns(
    tmp_path: Path, text: str, named: dict[str, str]
) -> None:
    file = tmp_path / "events.txt"
    file.write_text(text)
    log = read_log(file, **named)
    assert (log.n_events, log.user_ids.tolist(), log.item_ids.tolist()) == (3, ["a", "b"], ["x", "y"])
    assert log.items.tolist() == [0, 1, 0]


@pytest.mark.parametrize("text", ["u1 a\nu1 b\nu2 b\nu1 c\nu2 a\n", "user,item\nu1,a\nu1,b\nu2,b\nu1,c\nu2,a\n"])
def test_a_log_without_times_is_read_in_its_order_where_one_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(text.replace("u1", "1").replace("u2", "2") if " " in text else text)
    with pytest.raises(InputError, match=r"no time column found .*\(time=none: events are in order\)"):
        read_log(path)
    log = read_log(path, time="none")
    assert [log.item_ids[log.history(user)].tolist() for user in range(2)] == [["a", "b", "c"], ["b", "a"]]
    assert len(set(log.times.tolist())) == 1
    assert any("without times" in note for note in log.notes)
    with pytest.raises(InputError, match=r"do all events share one time\? then use leave-one-out"):
        split(log, "global-time")
