"""A run's folder: the split it was fitted on comes back, whatever made it; old and damaged folders are told."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support import tiny

from prism.errors import InputError, Note
from prism.recommend.data.splits import GlobalTime, split
from prism.recommend.recommender import Recommender
from prism.recommend.runs.storage import read_split, same_split, write_split

FAST = replace(tiny.CONFIG, train=replace(tiny.CONFIG.train, epochs=1))
CUSTOM = GlobalTime(valid=0.2, test=0.2, min_item_events=12, targets="first", remove_seen=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recommender, Path]:
    folder = tmp_path_factory.mktemp("custom")
    divided = split(tiny.log(), CUSTOM)
    return Recommender.fit_split(divided, replace(FAST, protocol="global-time"), folder, progress=False), folder


def test_a_run_on_a_custom_split_loads_with_its_own_catalogue_and_queries(run: tuple[Recommender, Path]) -> None:
    made, folder = run
    assert made.model.items < split(tiny.log(), "global-time").train.n_items  # else this tests nothing
    again = Recommender.load(folder)
    assert same_split(again.split, made.split)
    assert np.array_equal(again.split.train.items, made.split.train.items)
    assert again.split.train.item_ids.tolist() == made.split.train.item_ids.tolist()
    assert again.evaluate()["ndcg@10"] == made.evaluate()["ndcg@10"]
    assert again.recommend(7) == made.recommend(7)


def test_the_same_events_divided_otherwise_do_not_continue_a_run(run: tuple[Recommender, Path]) -> None:
    made, folder = run
    with pytest.raises(InputError, match="or divided otherwise; choose another folder"):
        Recommender.fit_split(split(tiny.log(), "global-time"), made.config, folder, progress=False)


def test_harmless_changes_continue_a_run(run: tuple[Recommender, Path]) -> None:
    made, folder = run
    quicker = replace(made.config, train=replace(made.config.train, save_seconds=7, log_steps=9))
    Recommender.fit_split(made.split, quicker, folder, progress=False)
    other = replace(made.config, train=replace(made.config.train, seed=1))
    with pytest.raises(InputError, match="holds another run: seed is 0 there and 1 here"):
        Recommender.fit_split(made.split, other, folder, progress=False)


def test_a_folder_from_before_splits_were_kept_is_divided_again_and_says_so(tmp_path: Path) -> None:
    made = split(tiny.log(), "leave-one-out")
    write_split(tmp_path, made)
    (tmp_path / "split.json").unlink()
    events = pl.read_parquet(tmp_path / "events.parquet").select("user", "code", "time")
    events.write_parquet(tmp_path / "events.parquet")
    with pytest.warns(Note, match="before splits were kept with a run: its events are divided by leave-one-out again"):
        found = read_split(tmp_path, "run", "leave-one-out")
    assert same_split(found, made)


def test_numbers_beside_text_come_back_as_they_were(tmp_path: Path) -> None:
    log = tiny.log()
    users, items = log.user_ids.astype(object), log.item_ids.astype(object)
    users[3], items[5] = "someone", "B7"
    made = split(replace(log, user_ids=users, item_ids=items), "leave-one-out")
    write_split(tmp_path, made)
    found = read_split(tmp_path, "run", "leave-one-out")
    assert same_split(found, made)
    assert found.log.user_ids.tolist() == users.tolist()
    assert [type(id_) for id_ in found.log.item_ids.tolist()] == [type(id_) for id_ in items.tolist()]


def test_a_damaged_split_is_refused_in_one_line(tmp_path: Path) -> None:
    write_split(tmp_path, split(tiny.log(), "leave-one-out"))
    for damage in ("[]", "{", "{}", json.dumps({"protocol": "x", "valid": {"a": 1}, "test": {}})):
        (tmp_path / "split.json").write_text(damage)
        with pytest.raises(InputError, match="fit it again") as error:
            read_split(tmp_path, "run", "leave-one-out")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[]", "{", "3", '"x"'])
def test_a_config_that_is_no_config_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config|cannot be read"):
        Recommender.load(tmp_path)
