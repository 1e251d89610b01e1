"""Known data sets: every published layout is read, found where the user put it, and missed in one line."""

import gzip
import json
import zipfile
from pathlib import Path

import pytest

from prism.errors import InputError
from prism.recommend.data import readers
from prism.recommend.data.known import KNOWN, load, statistics, statistics_table
from prism.recommend.data.log import Log
from prism.recommend.data.reading import Reading

REAL = Path(__file__).parents[4] / "shared" / "data"
RATINGS = [(1, 31, 5, 978300760), (1, 7, 3, 978300000), (2, 31, 4, 978300760), (2, 7, 4, 978300760)]


def history(log: Log, user: object) -> list[object]:
    return log.item_ids[log.history(log.user_code(user))].tolist()


def check_ratings(log: Log) -> None:
    assert history(log, 1) == [7, 31]
    assert history(log, 2) == [31, 7]  # one time: the file's order
    assert log.item_label(0) == "Café: Two (1999)"
    assert log.item_features is not None
    assert log.item_features["genres"].to_list() == ["Comedy|Drama", None]
    assert log.item_label(1) == "31"  # not in the table of films: its id


def write_dat(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "ratings.dat").write_text("".join("::".join(map(str, row)) + "\n" for row in RATINGS))
    (folder / "movies.dat").write_bytes("7::Café: Two (1999)::Comedy|Drama\n".encode("latin-1"))


def test_ml_1m_is_read_from_its_folder_its_parent_or_its_zip(tmp_path: Path) -> None:
    write_dat(tmp_path / "ml-1m")
    check_ratings(load("ml-1m", Reading(folder=tmp_path / "ml-1m")))
    check_ratings(load("ml-1m", Reading(folder=tmp_path)))
    archive = tmp_path / "download.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for file in (tmp_path / "ml-1m").iterdir():
            out.write(file, f"ml-1m/{file.name}")
    check_ratings(load("ml-1m", Reading(folder=archive)))


@pytest.mark.parametrize(("encoding", "notes"), [("utf-8", 0), ("latin-1", 1)])
def test_names_of_films_are_read_in_the_encoding_they_have(tmp_path: Path, encoding: str, notes: int) -> None:
    """ML-1M's are latin-1, ML-10M's UTF-8; what is not UTF-8 is told."""
    write_dat(tmp_path / "ml-10m")
    (tmp_path / "ml-10m" / "movies.dat").write_bytes("7::Café: Two (1999)::Comedy|Drama\n".encode(encoding))
    log = load("ml-10m", Reading(folder=tmp_path))
    check_ratings(log)
    assert sum("is not UTF-8: read as latin-1" in note for note in log.notes) == notes


def test_ml_20m_is_read_from_csv(tmp_path: Path) -> None:
    rows = "".join(",".join(map(str, row)) + "\n" for row in RATINGS)
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + rows)
    (tmp_path / "movies.csv").write_text('movieId,title,genres\n7,"Café: Two (1999)",Comedy|Drama\n', encoding="utf-8")
    check_ratings(load("ml-20m", Reading(folder=tmp_path)))


def test_ml_100k_is_read_from_grouplens_own_files_and_from_atomic_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in RATINGS))
    (tmp_path / "a" / "u.item").write_bytes("7|Café: Two (1999)|x\n".encode("latin-1"))
    own = load("ml-100k", Reading(folder=tmp_path / "a"))
    assert (history(own, 2), own.item_label(0)) == ([31, 7], "Café: Two (1999)")
    (tmp_path / "b").mkdir()
    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    rows = "".join("\t".join(map(str, row)) + "\n" for row in RATINGS)
    (tmp_path / "b" / "x.inter").write_text(head + rows)
    (tmp_path / "b" / "x.item").write_text('item_id:token\tmovie_title:token_seq\tyear:token\n7\t"Two" more\t1999\n')
    for source in (tmp_path / "b", tmp_path / "b" / "x.inter"):
        log = load(source)
        assert (history(log, 1), log.item_label(0)) == ([7, 31], '"Two" more')
        assert log.item_features is not None
        assert log.item_features["year"].to_list() == ["1999", None]
    assert history(load("ml-100k", Reading(folder=tmp_path / "b")), 1) == [7, 31]


def test_the_options_of_a_file_of_ones_own_are_those_of_an_atomic_file_too(tmp_path: Path) -> None:
    path = tmp_path / "x.inter"
    rows = "1\ta\t1\t5\n1\tb\t2\t6\n2\ta\t3\t6\n2\t\t4\t5\n"
    path.write_text("user_id:token\titem_id:token\ttimestamp:float\tcard:token\n" + rows)
    log = load(path, Reading(user="card:token", time="none", drop_nulls=True))
    assert (log.user_ids.tolist(), log.n_events, log.times.any()) == ([5, 6], 3, False)
    with pytest.raises(InputError, match=r"user='nope' is not a column of x\.inter"):
        load(path, Reading(user="nope"))
    path.write_text("card:token\titem_id:token\ttimestamp:float\n7\ta\t9\n")
    later = load(path, later=True, usual={"user": "card:token", "item": "item_id:token", "time": "timestamp:float"})
    assert (later.user_ids.tolist(), later.times.tolist()) == ([7], [9])


REVIEWS = [("A1USER", "B00ITEM001", 1400000000), ("A1USER", "0123456789", 1300000000), ("A2USER", "B00ITEM001", 5)]


def json_lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def amazon_files() -> dict[str, bytes]:
    old = [{"reviewerID": u, "asin": i, "unixReviewTime": t, "helpful": [0, 1]} for u, i, t in REVIEWS]
    new = [{"user_id": u, "parent_asin": i, "asin": "other", "timestamp": t * 1000} for u, i, t in REVIEWS]
    plain = [f"{u},{i},5.0,{t}\n" for u, i, t in REVIEWS]
    swapped = [f"{i},{u},5.0,{t}\n" for u, i, t in REVIEWS]
    with_head = ["user_id,parent_asin,rating,timestamp\n"] + [f"{u},{i},5.0,{t}000\n" for u, i, t in REVIEWS]
    return {
        "reviews_Books_5.json": json_lines(old),  # type: ignore[arg-type]
        "reviews_Books_5.json.gz": gzip.compress(json_lines(old)),  # type: ignore[arg-type]
        "Books.jsonl": json_lines(new),  # type: ignore[arg-type]
        "ratings_Books.csv": "".join(plain).encode(),
        "Books.csv": "".join(swapped).encode(),
        "Books_2023.csv": "".join(with_head).encode(),
        "Books_2023.csv.gz": gzip.compress("".join(with_head).encode()),
    }


@pytest.mark.parametrize("name", list(amazon_files()))
def test_every_generation_of_amazon_files_gives_the_same_log(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(amazon_files()[name])
    (tmp_path / "meta_Books.json").write_text("{'asin': 'B00ITEM001', 'title': \"It's\"}\n")  # 2014: no JSON
    log = load("amazon-books", Reading(folder=tmp_path), min_user_events=1)
    assert history(log, "A1USER") == ["0123456789", "B00ITEM001"]
    assert log.times.tolist() == [1300000000, 1400000000, 5]
    assert [log.item_label(0), log.item_label(1)] == ["0123456789", "It's"]


def test_yelp_is_read_with_names_and_the_papers_filter(tmp_path: Path) -> None:
    rows = [{"user_id": "u", "business_id": f"b{n % 3}", "date": f"2018-07-07 22:09:{n:02}"} for n in range(40)]
    rows += [{"user_id": "v", "business_id": "b9", "date": "2018-07-07 22:09:11"}] * 39
    (tmp_path / "yelp_academic_dataset_review.json").write_bytes(json_lines(rows))  # type: ignore[arg-type]
    names = [{"business_id": "b0", "name": "Café"}]
    (tmp_path / "yelp_academic_dataset_business.json").write_bytes(json_lines(names))  # type: ignore[arg-type]
    log = load("yelp", Reading(folder=tmp_path))
    assert log.user_ids.tolist() == ["u"]  # 39 events are one too few
    assert history(log, "u")[:4] == ["b0", "b1", "b2", "b0"]
    assert log.item_label(0) == "Café"
    lines = statistics_table(log).splitlines()
    assert lines[1].split() == ["ours", "1", "3", "40", "40.00"]
    assert lines[2].split() == ["paper", "17,233", "126,829", "1,605,608", "93.17"]


def test_the_papers_average_lengths_follow_from_its_counts() -> None:
    printed = {"amazon-books": 106.72, "amazon-movies": 121.22, "amazon-electronics": 65.89, "yelp": 93.17}
    found = {name: round(known.paper.average_length, 2) for name, known in KNOWN.items() if known.paper}
    assert found == printed


def test_a_data_set_is_looked_for_in_the_given_folder_then_the_environment_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PRISM_DATA", raising=False)
    with pytest.raises(InputError, match=r"'ml-1m' is not in ~/\.cache/prism: download .*grouplens\.org.*put its"):
        load("ml-1m")
    write_dat(tmp_path / "home" / ".cache" / "prism" / "ml-1m")
    check_ratings(load("ml-1m"))
    monkeypatch.setenv("PRISM_DATA", str(tmp_path / "mine"))
    check_ratings(load("ml-1m"))  # not there: the cache still serves
    write_dat(tmp_path / "mine" / "ml-1m")
    (tmp_path / "mine" / "ml-1m" / "ratings.dat").write_text("1::1::5::1\n1::2::5::2\n9::2::5::3\n")
    assert load("ml-1m").user_ids.tolist() == [1, 9]
    with pytest.raises(InputError, match=r"folder .*nowhere for data set 'ml-1m' does not exist"):
        load("ml-1m", Reading(folder=tmp_path / "nowhere"))


def test_wrong_names_and_wrong_folders_get_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_bytes(b"no zip")
    (tmp_path / "empty").mkdir()
    (tmp_path / "review.json").write_text("not json\n")
    for name, folder, said in [
        ("ml-1n", None, "neither a file nor a known data set: did you mean 'ml-1m'"),
        ("log.csv", None, "no such file: log.csv"),
        ("ml-1m", tmp_path / "bad.zip", r"cannot read .*bad\.zip"),
        ("ml-1m", tmp_path / "empty", "holds no ratings.dat"),
        ("amazon-books", tmp_path / "empty", "holds no review file"),
        ("yelp", tmp_path / "empty", "holds no review file"),
        ("yelp", tmp_path, "its first line is no JSON object"),
    ]:
        with pytest.raises(InputError, match=said):
            load(name, Reading(folder=folder))


def test_damaged_atomic_files_get_one_line(tmp_path: Path) -> None:
    events, items = tmp_path / "x.inter", tmp_path / "x.item"
    for content, file in [
        ("user_id:token\titem_id:token\ttimestamp:float\n1\t2\t3\t4\n", events),
        ("", events),
        ("item_id:token\ttitle:token\n7\tTwo\tmore\n", items),
        ("", items),
    ]:
        events.write_text("user_id:token\titem_id:token\ttimestamp:float\n1\t7\t3\n1\t8\t4\n2\t7\t5\n")
        file.write_text(content)
        for source in (tmp_path, events):
            with pytest.raises(InputError, match=f"{file.name} of .* is no atomic file: [^\n]*$"):
                load(source)


def test_other_json_fields_and_other_csv_columns_are_named(tmp_path: Path) -> None:
    (tmp_path / "review.json").write_text('{"who": 1}\n')
    with pytest.raises(InputError, match=r"review\.json of .* has no user: its fields are who"):
        load("yelp", Reading(folder=tmp_path))
    (tmp_path / "review.json").unlink()
    (tmp_path / "x.csv").write_text("1,2,3\n4,5,6\n")
    with pytest.raises(InputError, match="expected columns user, item, rating, time; got 1, 2, 3"):
        load("amazon-books", Reading(folder=tmp_path))


def test_online_retail_ships_with_names() -> None:
    log = load("online-retail")
    assert (log.n_users, log.n_items, log.n_events) == (4339, 3665, 397_924)
    assert log.item_label(log.item_code("85123A")) == "WHITE HANGING HEART T-LIGHT HOLDER"
    assert (readers.SHIPPED.parents[4] / "NOTICE").read_text().count("CC BY 4.0") == 1


@pytest.mark.parametrize(("name", "counts"), [("ml-1m", (6040, 3706, 1_000_209)), ("ml-100k", (943, 1682, 100_000))])
def test_the_real_movielens_has_its_published_counts(name: str, counts: tuple[int, int, int]) -> None:
    if not (REAL / name).is_dir():
        pytest.skip(f"{REAL / name} is not there: download {name} from {KNOWN[name].home}")
    log = load(name, Reading(folder=REAL))
    found = statistics(log)
    assert (found.users, found.items, found.events) == counts
    assert "Toy Story" in log.item_label(0)
