"""A bad log is refused in one line that names the file or column, the value and the remedy."""

import datetime as dt
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.refusals import assert_refused

from prism.errors import InputError
from prism.recommend.data.logs import read_log

HEAD = "user,item,time\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "log.csv is empty"),
        ("\n\n", "log.csv is empty"),
        (HEAD, "log.csv has no events"),
        ("user,item\n1,2\n1,3\n", "no time column found in .*log.csv: it has user, item; name it with time="),
        (
            "a,b,c\n1,2,3\n",
            "no user, item, time columns found in .*: it has a, b, c; name them with user=, item=, time=",
        ),
        (HEAD + "1,1,yesterday\n1,2,2024-01-01\n2,1,2024-01-01\n", "'time' of .*event 1: 'yesterday' is not a time"),
        (HEAD + "1,1,1\n1,2,\n2,1,3\n", "'time' of .*event 2: no time"),
        (HEAD + "1,1,1\n1,2,inf\n2,1,3\n", "'time' of .*event 2: inf is not a time"),
        (HEAD + "1,1,1\n1,2,2\n", r"single user, 1 \(column .* in 2 events.* is user= the right column"),
        (HEAD + "1,1,1\n2,1,2\n2,1,2\n", r"single item, 1 \(column .* in 3 events.* is item= the right column"),
        (HEAD + "1,1,1\n2,2,2\n3,1,2\n", "every user of .*log.csv has one event .*'user'"),
        (HEAD + "1,1,1\n,2,2\n3,1,2\n", "'user' of .*: 1 of 3 ids are missing, first in event 2"),
        (HEAD + "1,1,1\n1,NaN,2\n3,1,2\n", "'item' of .*: 1 of 3 ids are missing, first in event 2"),
        (HEAD + "1,1,1,9,9\n1,2,2\n", "cannot read .*log.csv: a line has more fields than the header; put values"),
        ("0,2010-10-19,30.2,-97.7,22\n", "no user, item, time columns .*no header line; its columns are 1 to 5"),
        ("0,1,2\na,b,1300000000\n", "no user, item, time columns found in .*log.csv: it has 0, 1, 2"),
    ],
)
def test_a_bad_csv_gets_one_line(tmp_path: Path, text: str, said: str) -> None:
    assert_refused(read_log, tmp_path / "log.csv", text.encode(), said)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("log.csv", b"\x89PNG\r\n\x1a\n\0\0\0", "log.csv is not a CSV"),
        ("log.csv", (HEAD + "1,1,1\n").encode("utf-16"), "log.csv is not a CSV"),
        (
            "log.csv",
            b"user,item,time\n1,\xe9,1\n1,2,2\n2,2,2\n",
            "cannot read .*log.csv.*utf-8.*: save the file as UTF-8",
        ),
        ("log.xlsx", b"PK\x03\x04", "log.xlsx is an Excel workbook: save its sheet as CSV"),
        ("log.parquet", b"user,item,time\n", "log.parquet is not a Parquet file"),
        ("log.parquet", b"PAR1 and then nothing of use", "cannot read .*log.parquet"),
        ("log.jsonl", b'{"user": 1, "item"\n', "cannot read .*log.jsonl"),
        ("log.csv.gz", b"\x1f\x8bbroken", "cannot read .*log.csv.gz"),
    ],
)
def test_a_file_of_the_wrong_type_gets_one_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    assert_refused(read_log, tmp_path / name, content, said)


def test_paths_that_hold_nothing_get_one_line(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    for source, said in [
        (tmp_path / "none.csv", "no such file: .*none.csv"),
        (tmp_path / "*.csv", "no file matches .*csv"),
        (tmp_path, "holds no data file"),
        ([], "empty list"),
        ("", "source is empty: name a file"),
        (3, "source must be a path, paths or a data frame, got int"),
        ({"user": [1]}, "source must be a path, paths or a data frame, got dict"),
    ]:
        with pytest.raises(InputError, match=said):
            read_log(source)


def test_an_unreadable_file_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log.csv"
    file.write_text(HEAD)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")  # chmod does not bind a test that runs as root

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"cannot read .*log\.csv: Permission denied"):
        read_log(file)


def test_wrong_column_names_get_the_nearest_one() -> None:
    frame = pl.DataFrame({"customer_id": [1], "item": [2], "time": [3]})
    with pytest.raises(InputError, match=r"user='customer' is not a column .*did you mean 'customer_id'"):
        read_log(frame, user="customer")
    with pytest.raises(InputError, match="three columns"):
        read_log(frame, user="item")


def test_ids_that_are_fractions_or_nan_are_refused_and_whole_floats_accepted() -> None:
    rest = {"item": [1, 2, 3], "time": [1, 2, 3]}
    with pytest.raises(InputError, match=r"'user' .* holds 1\.5: an id is a whole number or text"):
        read_log(pl.DataFrame({"user": [1.5, 1.0, 2.0], **rest}))
    with pytest.raises(InputError, match="1 of 3 ids are missing, first in event 3"):
        read_log(pl.DataFrame({"user": [1.0, 1.0, np.nan], **rest}))
    assert read_log(pl.DataFrame({"user": [7.0, 7.0, 8.0], **rest})).user_ids.tolist() == [7, 8]


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ([[1], [1], [2]], "List"),
        ([b"\xff", b"\xff", b"a"], "Binary"),
        ([dt.timedelta(1), dt.timedelta(1), dt.timedelta(2)], "Duration"),
        (pl.Series([2**70, 2**70, 1], dtype=pl.Int128), "Int128"),
    ],
)
def test_a_column_from_which_no_ids_can_be_made_is_refused(ids: object, kind: str) -> None:
    frame = pl.DataFrame({"user": ids, "item": [1, 2, 1], "time": [1, 2, 3]})
    with pytest.raises(InputError, match=f"'user' of the data frame has type {kind}.*: give whole numbers of 64 bits"):
        read_log(frame)


def test_a_time_column_of_another_type_is_refused() -> None:
    with pytest.raises(InputError, match=r"'time' .* has type Boolean, not a time"):
        read_log(pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": [True, False]}))


def test_a_user_with_one_event_among_others_is_kept() -> None:
    log = read_log(pl.DataFrame({"user": [1, 2, 2], "item": [1, 1, 2], "time": [1, 2, 3]}))
    assert log.lengths.tolist() == [1, 2]


def test_ten_million_duplicate_rows_are_events_and_load_in_seconds() -> None:
    n = 5_000_000
    row = {"user": 1, "item": 1, "time": 1_700_000_000}
    frame = pl.DataFrame(row).select(pl.all().repeat_by(n).explode())
    frame = pl.concat([frame, frame.with_columns(user=2, item=2).cast(frame.schema)])  # type: ignore[arg-type]
    start = time.perf_counter()
    log = read_log(frame)
    assert log.lengths.tolist() == [n, n]
    assert (log.items[:n] == 0).all()
    assert time.perf_counter() - start < 60  # 2 s alone on one core
    with pytest.raises(InputError, match=r"single user, .*in 5,000,000 events"):
        read_log(frame.head(n))
