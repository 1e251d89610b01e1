"""A prepared log is the log: the same events, codes and questions, in partitions that tell when they are changed."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.bucket import bucket

from prism.errors import InputError, Note
from prism.recommend.data.log import Log
from prism.recommend.data.logs import read_log
from prism.recommend.data.prepared import chunks, deal
from prism.recommend.data.prepared.manifest import Prepared, joined
from prism.recommend.data.prepared.prepare import prepare_log
from prism.recommend.data.splits import split
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.partition import partition

LOG = synthetic_log(60, 40, 2000, seed=3)


def frame(log: Log = LOG) -> pl.DataFrame:
    return log.frame().sample(fraction=1.0, shuffle=True, seed=1)


def three_files(folder: Path) -> list[str]:
    """The log as a CSV, a Parquet file and JSON lines."""
    whole = frame()
    whole[:700].write_csv(folder / "a.csv")
    whole[700:1500].write_parquet(folder / "b.parquet")
    whole[1500:].write_ndjson(folder / "c.jsonl")
    return [str(folder / name) for name in ("a.csv", "b.parquet", "c.jsonl")]


def events(log: Log) -> set[tuple[str, str, int]]:
    rows = zip(log.user_ids[log.users].tolist(), log.item_ids[log.items].tolist(), log.times.tolist(), strict=True)
    return {(str(user), str(item), time) for user, item, time in rows}


def test_partitions_hold_every_event_where_the_hash_says_in_order_of_user_and_time(tmp_path: Path) -> None:
    made = prepare_log(three_files(tmp_path), tmp_path / "out", partitions=8)
    logs = [made.read(n) for n in range(8)]
    assert sum(log.n_events for log in logs) == made.manifest.events == 2000
    assert set().union(*(events(log) for log in logs)) == events(LOG)
    for n, log in enumerate(logs):
        assert all(partition(user, 8) == n for user in log.user_ids.tolist())
        assert (np.diff(log.times)[np.diff(log.users) == 0] >= 0).all()
        assert len(set(log.user_ids.tolist())) == log.n_users


def test_the_split_of_all_partitions_asks_what_the_split_in_memory_asks(tmp_path: Path) -> None:
    files = [str(tmp_path / "log.csv")]
    frame().write_csv(files[0])
    made = prepare_log(files, tmp_path / "out", partitions=4)
    ours, theirs = made.split(list(range(4))), split(read_log(files[0]))
    assert np.array_equal(made.item_ids, theirs.log.item_ids)
    assert ours.train.n_items == theirs.train.n_items == made.manifest.candidates
    assert events(ours.train) == events(theirs.train)
    assert np.array_equal(made.item_counts, theirs.train.item_counts())
    for name in ("valid", "test"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert a.facts() == b.facts()
        asked = [
            sorted(zip(s.log.user_ids[q.users].tolist(), s.log.times[q.positions].tolist(), strict=True))
            for s, q in ((ours, a), (theirs, b))
        ]
        assert asked[0] == asked[1]


def test_events_of_equal_time_keep_the_order_of_the_files(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        {"user": ["a", "b"] * 50, "item": [f"i{n}" for n in range(100)], "time": [n // 60 for n in range(100)]}
    )
    rows.write_csv(tmp_path / "log.csv")
    made = prepare_log([str(tmp_path / "log.csv")], tmp_path / "out", partitions=3, shares=(0.1, 0.1))
    log = joined([made.read(n) for n in range(3)], "log")
    for user, code in (("a", 0), ("b", 1)):
        items = log.item_ids[log.history(log.user_code(user))].tolist()
        assert items == [f"i{n}" for n in range(code, 100, 2)]


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
def test_whole_and_fractional_times_of_several_files_are_in_one_order(tmp_path: Path, scale: int) -> None:
    whole = {"user": [1, 1, 2, 2], "item": [1, 2, 1, 3], "time": [(10**9 + n) * scale for n in (20, 30, 25, 9)]}
    broken = {"user": [1, 1, 2, 2], "item": [3, 4, 2, 4], "time": [(1e9 + n) * scale for n in (10.5, 15.5, 22.2, 17.2)]}
    files = [str(tmp_path / name) for name in ("whole.csv", "broken.csv")]
    for file, rows in zip(files, (whole, broken), strict=True):
        pl.DataFrame(rows).write_csv(file)
    made, log = prepare_log(files, tmp_path / "out", partitions=1).read(0), read_log(files)
    assert (np.diff(made.times)[np.diff(made.users) == 0] >= 0).all()
    assert np.array_equal(made.item_ids[made.items], log.item_ids[log.items])
    assert np.array_equal(made.times, log.times)


@pytest.mark.parametrize("other", [pl.Int64, pl.String])
def test_an_id_is_one_whether_a_file_has_it_as_a_whole_number_or_as_a_float(tmp_path: Path, other: type) -> None:
    whole = {"user": pl.Series([7, 7, 8]).cast(other), "item": [1, 2, 1], "time": [1, 2, 3]}
    with_a_gap = {"user": [7.0, 8.0, None], "item": [1, 2, 1], "time": [4, 5, 6]}
    files = [str(tmp_path / name) for name in ("1.parquet", "2.parquet")]
    for file, rows in zip(files, (whole, with_a_gap), strict=True):
        pl.DataFrame(rows).write_parquet(file)
    log = prepare_log(files, tmp_path / "out", partitions=1, drop_nulls=True).read(0)
    assert log.user_ids.tolist() == (["7", "8"] if other is pl.String else [7, 8])
    assert log.lengths.tolist() == [3, 2]


def test_ids_of_text_files_are_numbers_where_all_are(tmp_path: Path) -> None:
    for name, user in (("a", "7"), ("b", "007")):
        (tmp_path / f"{name}.csv").write_text(
            f"user,item,time\n{user},1,5\n{user},2,6\n8,1,7\n8,2,9\n8,1,11\n9,1,1\n9,2,3\n"
        )
        made = prepare_log([str(tmp_path / f"{name}.csv")], tmp_path / name, partitions=2, shares=(0.2, 0.2))
        users = {user for n in range(2) for user in made.read(n).user_ids.tolist()}
        assert users == ({7, 8, 9} if name == "a" else {"007", "8", "9"})


def test_an_address_is_read_as_its_file_is(tmp_path: Path) -> None:
    frame().write_parquet(tmp_path / "log.parquet")
    here = prepare_log([str(tmp_path / "log.parquet")], tmp_path / "here", partitions=4)
    there = prepare_log([f"file://{tmp_path}/log.parquet"], tmp_path / "there", partitions=4)
    assert [part.sha256 for part in here.manifest.parts] == [part.sha256 for part in there.manifest.parts]


@pytest.mark.parametrize("given", ["{}/events-*.parquet", "{}", "file://{}/events-*.parquet"])
def test_a_pattern_a_folder_and_a_pattern_of_addresses_name_the_same_files(given: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    files = [str(tmp_path / "logs" / f"events-{n}.parquet") for n in range(3)]
    for n, file in enumerate(files):
        frame()[n::3].write_parquet(file)
    named = prepare_log(files, tmp_path / "named", partitions=4)
    found = prepare_log([given.format(tmp_path / "logs")], tmp_path / "found", partitions=4)
    assert [part.sha256 for part in found.manifest.parts] == [part.sha256 for part in named.manifest.parts]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What an object store was asked for, in which the bucket `logs` is the folder of that name."""
    with bucket(tmp_path / "logs") as (address, asked):
        settings = {"AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        for name, value in (settings | {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}).items():
            monkeypatch.setenv(name, value)
        yield asked


def test_objects_of_a_bucket_are_read_as_files_are(store: list[str], tmp_path: Path) -> None:
    (tmp_path / "logs" / "day").mkdir(parents=True)
    files = [str(tmp_path / "logs" / "day" / f"events-{n}.parquet") for n in range(3)]
    for n, file in enumerate(files):
        frame()[n::3].write_parquet(file)
    here = prepare_log(files, tmp_path / "here", partitions=4)
    assert not store
    there = prepare_log(["s3://logs/day/events-*.parquet"], tmp_path / "there", partitions=4)
    assert {name for name in store if name.endswith(".parquet")} == {f"/logs/day/events-{n}.parquet" for n in range(3)}
    assert [part.sha256 for part in there.manifest.parts] == [part.sha256 for part in here.manifest.parts]
    with pytest.raises(InputError, match=r"cannot read s3://logs/none\.parquet: [^\n]+$"):
        prepare_log(["s3://logs/none.parquet"], tmp_path / "none", partitions=4)


@pytest.mark.parametrize("where", ["deal", "sort"])
def test_a_preparation_that_was_stopped_goes_on_to_the_same_files(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "ROWS", 200)
    files = three_files(tmp_path)
    whole = prepare_log(files, tmp_path / "whole", partitions=8)
    place, name = (deal.Dealer, "_mark") if where == "deal" else (deal.Sorter, "_count")
    _fail_after(monkeypatch, place, name, 5)
    with pytest.raises(RuntimeError, match="stopped"):
        prepare_log(files, tmp_path / "out", partitions=8)
    assert not (tmp_path / "out" / "manifest.json").exists()
    monkeypatch.undo()
    again = prepare_log(files, tmp_path / "out", partitions=8)
    assert again.manifest.parts == whole.manifest.parts
    assert again.manifest.checksums == whole.manifest.checksums
    assert not (tmp_path / "out" / ".prepare").exists()


def _fail_after(monkeypatch: pytest.MonkeyPatch, place: type, name: str, calls: int) -> None:
    real: Callable[..., None] = getattr(place, name)
    left = [calls]

    def failing(*args: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("stopped")
        real(*args)

    monkeypatch.setattr(place, name, failing)


@pytest.mark.parametrize("torn", [60, 1])
def test_a_preparation_that_was_stopped_within_a_line_goes_on_and_can_be_stopped_again(
    torn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = three_files(tmp_path)
    whole = prepare_log(files, tmp_path / "whole", partitions=6)
    listed = tmp_path / "out" / ".prepare" / "parts.jsonl"
    for done in (3, 5):
        _fail_after(monkeypatch, deal.Sorter, "_count", done)
        with pytest.raises(RuntimeError, match="stopped"):
            prepare_log(files, tmp_path / "out", partitions=6)
        monkeypatch.undo()
        os.truncate(listed, listed.stat().st_size - torn)
    assert prepare_log(files, tmp_path / "out", partitions=6).manifest.parts == whole.manifest.parts


def test_a_spill_that_lost_its_end_is_dealt_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = three_files(tmp_path)
    whole = prepare_log(files, tmp_path / "whole", partitions=4)
    _fail_after(monkeypatch, deal.Sorter, "_count", 0)
    with pytest.raises(RuntimeError, match="stopped"):
        prepare_log(files, tmp_path / "out", partitions=4)
    monkeypatch.undo()
    spill = tmp_path / "out" / ".prepare" / "spill-00002"
    os.truncate(spill, spill.stat().st_size - 1)
    with pytest.warns(Note, match="shorter than it was"):
        again = prepare_log(files, tmp_path / "out", partitions=4)
    assert again.manifest.parts == whole.manifest.parts


def test_a_changed_or_missing_partition_is_told(tmp_path: Path) -> None:
    made = prepare_log(three_files(tmp_path), tmp_path / "out", partitions=4)
    path = tmp_path / "out" / made.manifest.parts[2].file
    content = path.read_bytes()
    path.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    with pytest.raises(InputError, match=r"part-00002\.parquet is not what was written, by its checksum"):
        made.read(2)
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=r"part-00002\.parquet is not what was written, by its size"):
        Prepared.open(tmp_path / "out")
    path.unlink()
    with pytest.raises(InputError, match=r"part-00002\.parquet is missing"):
        Prepared.open(tmp_path / "out")


def test_a_folder_of_another_log_or_version_is_refused(tmp_path: Path) -> None:
    files = three_files(tmp_path)
    prepare_log(files, tmp_path / "out", partitions=4)
    assert prepare_log(files, tmp_path / "out", partitions=4).manifest.events == 2000
    with pytest.raises(InputError, match="partitions is 4 there and 8 here"):
        prepare_log(files, tmp_path / "out", partitions=8)
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 99}))
    with pytest.raises(InputError, match="version 99"):
        Prepared.open(tmp_path / "out")
    manifest.write_text("[]")
    with pytest.raises(InputError, match="is not of a log that `prism prepare` wrote"):
        Prepared.open(tmp_path / "out")


def test_a_log_without_times_is_refused_for_it_could_not_be_divided(tmp_path: Path) -> None:
    frame().drop("time").write_csv(tmp_path / "log.csv")
    columns = {"user": None, "item": None, "time": "none"}
    with pytest.raises(InputError, match=r"^time='none': a prepared log is divided by time; name the column of times"):
        prepare_log([str(tmp_path / "log.csv")], tmp_path / "out", partitions=2, columns=columns)
    assert not (tmp_path / "out").exists()


def test_files_that_tell_time_in_two_ways_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item,time\n1,1,1000000000\n1,2,1000000001\n")
    (tmp_path / "b.csv").write_text("user,item,time\n2,1,1000000000000\n2,2,1000000001000\n")
    with pytest.raises(InputError, match="differ in how they tell time"):
        prepare_log([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], tmp_path / "out", partitions=2)
