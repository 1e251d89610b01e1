"""Tables about items: joined by id, their values shared between items, mistakes answered in a line."""

from pathlib import Path

import polars as pl
import pytest
from support import tiny

from prism.errors import InputError
from prism.recommend.data.items import ItemValues, item_values, with_item_table
from prism.recommend.data.known import load
from prism.recommend.data.log import Log
from prism.recommend.data.logs import read_log
from prism.recommend.data.reading import Reading

EVENTS = pl.DataFrame({"user": [1, 1, 2, 2, 3], "film": ["a", "b", "c", "d", "a"], "time": [1, 2, 3, 4, 5]})
FILMS = pl.DataFrame(
    {
        "film": ["d", "c", "b", "x"],
        "genre": ["noir", "noir|crime", "crime", "noir"],
        "title": ["The Big Sleep", "Big fish, small fish", None, "unseen"],
        "year": [1946, 1946, 2001, 1946],
    }
)


def films() -> Log:
    return read_log(EVENTS, item="film", items=FILMS)


def named(values: ItemValues, item: int) -> dict[str, float]:
    part = slice(*values.offsets[item : item + 2])
    names = [values.names[code] for code in values.values[part]]
    return dict(zip(names, values.weights[part].tolist(), strict=True))


def test_a_table_is_joined_by_id_and_items_without_a_row_have_nothing() -> None:
    log = films()
    assert log.item_ids.tolist() == ["a", "b", "c", "d"]
    assert log.item_names is not None
    assert log.item_names.tolist() == [None, None, "Big fish, small fish", "The Big Sleep"]
    assert log.item_features is not None
    assert log.item_features["genre"].to_list() == [None, "crime", "noir|crime", "noir"]
    assert log.notes[-1] == "items: 3 of 4 are in the table of items, by column film; shown by column title"


@pytest.mark.parametrize(
    ("column", "option"), [("Bezeichnung", "Bezeichnung"), ("Product Name", None), ("TITLE", None), ("name", None)]
)
def test_what_is_shown_of_an_item_is_in_the_column_named_or_one_that_is_called_like_it(
    column: str, option: str | None
) -> None:
    table = pl.DataFrame({"film": ["a", "b", "c"], "year": [1, 2, 3], column: ["A", " ", None]})
    log = read_log(EVENTS, item="film", items=table, item_name=option)
    assert log.item_names is not None
    assert log.item_names.tolist() == ["A", None, None, None]  # an empty name is none
    assert log.notes[-1].endswith(f"shown by column {column}")
    assert log.columns == {"user": "user", "item": "film", "time": "time", "name": column}


def test_a_table_without_names_says_how_to_give_them_and_a_wrong_column_is_refused() -> None:
    table = pl.DataFrame({"film": ["a", "b"], "year": [1, 2]})
    log = read_log(EVENTS, item="film", items=table)
    assert log.item_names is None
    assert log.notes[-1].endswith(
        "none of its columns seems to have their names: item_name (--item-name) says which has"
    )
    with pytest.raises(InputError, match=r"item_name='yaer' is not a column of the table of items .* mean 'year'"):
        read_log(EVENTS, item="film", items=table, item_name="yaer")
    with pytest.raises(InputError, match="item_name='year' is a column of a table of items: give items= too"):
        load(EVENTS, Reading(item="film", item_name="year"))


def test_values_are_those_that_items_share_with_weights_of_one_a_column() -> None:
    found = item_values(films(), ["genre", "year", "name:words"])
    assert [named(found, item) for item in range(4)] == [
        {},
        {"genre=crime": 1.0},  # its year is no other item's
        {"genre=noir": 0.5, "genre=crime": 0.5, "year=1946": 1.0, "name:words=big": 1.0},
        {"genre=noir": 1.0, "year=1946": 1.0, "name:words=big": 1.0},
    ]


def test_a_file_serves_as_well_and_numbers_match_their_text(tmp_path: Path) -> None:
    tiny.log().frame().write_csv(tmp_path / "log.csv")
    pl.DataFrame({"id": range(50), "kind": [n % 5 for n in range(50)]}).write_csv(tmp_path / "items.csv")
    log = load(tmp_path / "log.csv", Reading(items=tmp_path / "items.csv"))
    assert log.item_features is not None
    assert log.item_features["kind"].to_list() == [str(n % 5) for n in log.item_ids.tolist()]


def test_the_shipped_products_share_words() -> None:
    found = item_values(load("online-retail"), ["name:words"])
    assert "name:words=heart" in found.names
    assert len(found.names) < 3665


def test_an_unknown_column_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="has no column 'genres' of items: did you mean 'genre'"):
        item_values(films(), ["genres"])


def test_a_useless_table_is_refused() -> None:
    with pytest.raises(InputError, match="knows only their ids; give a table of items"):
        item_values(tiny.log(), ["kind"])
    with pytest.raises(InputError, match="no two items share a value of kind"):
        item_values(with_item_table(tiny.log(), pl.DataFrame({"item": range(50), "kind": range(50)})), ["kind"])
    with pytest.raises(InputError, match="item 'd' of column 'film' has several rows"):
        read_log(EVENTS, item="film", items=pl.concat([FILMS, FILMS[:1]]))
    with pytest.raises(InputError, match="no id of column 'genre' is an item of"):
        with_item_table(tiny.log(), FILMS.drop("film"))
    with pytest.raises(InputError, match="the table of items has no columns: give one row per item"):
        with_item_table(tiny.log(), pl.DataFrame())
    with pytest.raises(InputError, match="items must be a file or a data frame, got int"):
        with_item_table(tiny.log(), 3)
