"""What the experts know of a log's partitions is what they know of the log."""

from pathlib import Path
from shutil import rmtree
from threading import Event, Thread

import numpy as np
import pytest

from prism.errors import InputError
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.data.prepared.prepare import prepare_log
from prism.recommend.data.splits import Split
from prism.recommend.data.splits import split as divide
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.model.experts import fit_experts, partitions, popular, tables
from prism.recommend.model.experts.rows import named_arrays
from prism.recommend.model.experts.tables import ExpertTables
from prism.recommend.model.experts.training import Folds, TrainingFeatures
from prism.recommend.runs import expert_files
from prism.recommend.runs.expert_files import KINDS, TOGETHER, keep_tables, read_tables

PARTS = 7


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("log")
    synthetic_log(80, 60, 4000, seed=3).frame().write_parquet(folder / "log.parquet")
    return prepare_log([str(folder / "log.parquet")], folder / "data", partitions=PARTS)


@pytest.fixture(params=["as it is", "in many files, with few periods and short rows"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "as it is":
        monkeypatch.setattr(partitions, "FILE_EVENTS", 300)
        monkeypatch.setattr(tables, "KEPT", 5)
        monkeypatch.setattr(popular, "PERIODS", 3)


def whole(prepared: Prepared) -> tuple[Split, np.ndarray]:
    """All partitions as one log, and the fold of each user."""
    numbers = np.repeat(np.arange(PARTS), [part.users for part in prepared.manifest.parts])
    return prepared.split(list(range(PARTS))), numbers % tables.FOLDS


def same(mine: ExpertTables, theirs: ExpertTables) -> None:
    for kind in (*KINDS, TOGETHER):
        for name, a, b in zip(tables.Rows._fields, getattr(mine, kind), getattr(theirs, kind), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=f"{kind}.{name}")
    for mine_, theirs_ in zip(named_arrays(mine.pair), named_arrays(theirs.pair), strict=True):
        np.testing.assert_allclose(mine_[1], theirs_[1], rtol=1e-6, err_msg=mine_[0])
    for name in ("period_starts", "ages", "floors", "bank"):
        np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.usefixtures("small")
def test_tables_from_partitions_are_those_of_all_events_at_once(prepared: Prepared) -> None:
    keep_tables(prepared)
    found, folds = read_tables(prepared)
    split, fold = whole(prepared)
    experts = fit_experts(split.train, novel=False, timed=True, repeats=np.zeros(1))
    same(found, experts.tables)
    expected = Folds.of(split.train, fold, tables.FOLDS, experts.tables)
    for mine, theirs in zip(folds.tables, expected.tables, strict=True):
        same(mine, theirs)
    np.testing.assert_allclose(folds.bank, expected.bank, rtol=1e-6, atol=1e-6)


def test_they_are_those_of_the_plain_log_item_by_item(prepared: Prepared) -> None:
    keep_tables(prepared)
    found, _ = read_tables(prepared)
    plain = divide(synthetic_log(80, 60, 4000, seed=3), "global-time").train
    theirs = fit_experts(plain, novel=False, timed=True, repeats=np.zeros(1)).tables
    code = {item: n for n, item in enumerate(plain.item_ids.tolist())}
    order = np.array([code[item] for item in prepared.item_ids[: prepared.manifest.candidates].tolist()])
    for kind in (*KINDS, TOGETHER):
        dense = []
        for rows in (getattr(found, kind), getattr(theirs, kind)):
            made = np.zeros((len(order), len(order)))
            for j in range(len(order)):
                part = slice(rows.starts[j], rows.starts[j + 1])
                made[j, rows.columns[part]] = rows.shares[part]
            dense.append(made)
        np.testing.assert_allclose(dense[0], dense[1][order][:, order], rtol=1e-6, err_msg=kind)
    np.testing.assert_allclose(found.bank, theirs.bank[:, order], rtol=1e-6, atol=1e-6)


def test_a_training_event_is_shown_what_the_other_folds_say(prepared: Prepared) -> None:
    keep_tables(prepared)
    _, folds = read_tables(prepared)
    split, fold = whole(prepared)
    experts = fit_experts(split.train, novel=False, timed=True)
    users = np.flatnonzero(split.train.lengths > 3)[:20]
    windows = users, split.train.offsets[users], split.train.offsets[users] + 4
    mine = TrainingFeatures(split.train, experts, fold, folds).of(*windows)
    expected = Folds.of(split.train, fold, tables.FOLDS, experts.tables)
    theirs = TrainingFeatures(split.train, experts, fold, expected).of(*windows)
    np.testing.assert_array_equal(mine.added.items, theirs.added.items)
    np.testing.assert_allclose(mine.added.values, theirs.added.values, rtol=1e-6)
    np.testing.assert_allclose(mine.contexts, theirs.contexts, rtol=1e-6)


def test_they_are_made_once_and_a_changed_file_is_told(prepared: Prepared) -> None:
    said: list[str] = []
    keep_tables(prepared)
    keep_tables(prepared, said.append)
    assert said == []
    for damage in ("[]", "{"):
        (prepared.folder / "experts" / "about.json").write_text(damage)
        keep_tables(prepared, said.append)  # made anew
        assert said
        said.clear()
    path = prepared.folder / "experts" / "next-0.shares"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match="shares is not what was written"):
        read_tables(prepared)


def test_of_two_that_want_tables_one_makes_them_and_the_other_waits(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    waits, make = Event(), expert_files._make

    def slowly(prepared: Prepared, part: Path, say: object) -> None:
        made.append(part)
        second.start()
        waits.wait(5)
        make(prepared, part, lambda line: None)

    second = Thread(target=lambda: keep_tables(prepared, lambda line: waits.set() if "waiting" in line else None))
    monkeypatch.setattr(expert_files, "_make", slowly)
    rmtree(prepared.folder / "experts", ignore_errors=True)
    keep_tables(prepared)
    second.join()
    assert waits.is_set()
    assert len(made) == 1
