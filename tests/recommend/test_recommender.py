"""The facade: recommendations for users and histories, filters, files that come back the same."""

import copy
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from support import tiny

import prism
from prism.errors import InputError
from prism.recommend.config import FitConfig
from prism.recommend.data.log import Log
from prism.recommend.recommender import Recommender

FAST = replace(tiny.CONFIG, train=replace(tiny.CONFIG.train, epochs=1))


@pytest.fixture(scope="module")
def made() -> Recommender:
    return Recommender.fit(tiny.log(), FAST, progress=False)


def items(found: list) -> list:
    return [one.item for one in found]


def test_a_user_gets_what_the_same_history_gets(made: Recommender) -> None:
    code = made.log.user_code(7)
    events = slice(*made.log.offsets[code : code + 2])
    history = made.log.item_ids[made.log.items[events]].tolist()
    assert made.recommend(7) == made.recommend(history=history, times=made.log.times[events])
    assert made.recommend(user="7") == made.recommend(7)


def test_recommendations_are_the_best_scores_without_what_was_seen(made: Recommender) -> None:
    found = made.recommend(history=[3, 4, 5], k=10)
    assert len(found) == 10
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert not {3, 4, 5} & set(items(found))
    assert len(made.recommend(history=[3, 4, 5], k=1000)) == made.model.items - 3
    assert len(made.recommend(history=[3, 4, 5], k=1000, exclude_seen=False)) == made.model.items


def test_allow_and_deny_lists_are_kept_to(made: Recommender) -> None:
    assert set(items(made.recommend(history=[3], allow=[5, 6, 7], deny=[6, "no such"]))) == {5, 7}
    with pytest.raises(InputError, match="no item of the allow-list is known"):
        made.recommend(history=[3], allow=["no such"])


def test_unknown_items_of_a_history_are_skipped_and_named(made: Recommender) -> None:
    with pytest.warns(UserWarning, match="2 of 3 items of the history are unknown.*'x', 'y'"):
        found = made.recommend(history=["x", 3, "y"])
    assert found == made.recommend(history=[3])


def test_an_empty_history_gets_recommendations_too(made: Recommender) -> None:
    assert len(made.recommend(history=[])) == 10
    assert items(made.recommend(history=[])) == items(made.session().recommend())


def test_mistakes_are_answered_in_one_line(made: Recommender) -> None:
    with pytest.raises(InputError, match=r"user 'nobody' is not in .*for someone new, give a history"):
        made.recommend("nobody")
    with pytest.raises(InputError, match="either a user of the log or a history"):
        made.recommend()
    for k in (0, -1, True):
        with pytest.raises(InputError, match=f"k must be a whole number of at least 1, got {k!r}"):
            made.recommend(history=[3], k=k)
    with pytest.raises(InputError, match=r"device 'gpu9' cannot be used .*: try cpu"):
        Recommender.load(".", device="gpu9")
    with pytest.raises(InputError, match=r"a table is written as .parquet, .csv, .jsonl, got '.xlsx'"):
        made.recommend_all("all.xlsx")
    with pytest.raises(InputError, match="times has 1 entries for a history of 2"):
        made.recommend(history=[3, 4], times=[1])


def test_all_users_at_once_get_what_each_gets_alone(made: Recommender, tmp_path: Path) -> None:
    rows = made.recommend_all(tmp_path / "all.parquet", k=5, deny=[1])
    frame = pl.read_parquet(tmp_path / "all.parquet")
    assert frame.height == rows <= 5 * made.log.n_users
    for user in (0, 17, 59):
        part = frame.filter(pl.col("user") == user).sort("rank")
        alone = made.recommend(user, k=5, deny=[1])
        assert part["item"].to_list() == items(alone)
        np.testing.assert_allclose(part["score"].to_numpy(), [one.score for one in alone], rtol=1e-4)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_all_recommendations_are_written_in_the_format_of_the_suffix(
    made: Recommender, tmp_path: Path, suffix: str
) -> None:
    made.recommend_all(tmp_path / "all.parquet", k=2)
    made.recommend_all(tmp_path / f"all{suffix}", k=2)
    read = pl.read_csv if suffix == ".csv" else pl.read_ndjson
    assert read(tmp_path / f"all{suffix}").select("user", "rank", "item").rows() == (
        pl.read_parquet(tmp_path / "all.parquet").select("user", "rank", "item").rows()
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_are_not_finite_are_an_error_everywhere(made: Recommender, tmp_path: Path, bad: float) -> None:
    broken = Recommender(copy.deepcopy(made.model), made.split, made.config)
    with torch.no_grad():
        broken.model.embedding.weight[5] = bad
    for ask in (
        lambda: broken.recommend(3),
        lambda: broken.recommend_all(tmp_path / "all.parquet"),
        lambda: broken.session(3).recommend(),
        lambda: broken.evaluate(),
    ):
        with pytest.raises(InputError, match="not finite"):
            ask()
    assert not list(tmp_path.iterdir())


def test_an_id_is_found_as_it_is_written_and_not_otherwise(made: Recommender) -> None:
    assert made.recommend("7") == made.recommend(7) == made.recommend(np.int32(7))
    for other in ("007", "--7", "7.0", "+7", " 7", "٧", True, None, b"7"):
        with pytest.raises(InputError):
            made.recommend(other)


def test_saved_and_loaded_it_is_the_same(made: Recommender, tmp_path: Path) -> None:
    made.save(tmp_path / "run")
    again = Recommender.load(tmp_path / "run")
    assert again.config == made.config
    assert again.recommend(7) == made.recommend(7)
    assert again.evaluate().values["ndcg@10"].tolist() == made.evaluate().values["ndcg@10"].tolist()
    assert not [file for file in (tmp_path / "run").rglob("*") if file.suffix in (".pt", ".bin", ".pkl")]


def test_text_ids_and_names_come_back(made: Recommender, tmp_path: Path) -> None:
    log = tiny.log()
    named = replace(
        log,
        user_ids=np.array([f"u{n}" for n in range(log.n_users)], dtype=object),
        item_ids=np.array([f"i{n}" for n in range(log.n_items)], dtype=object),
        item_names=np.array([f"item number {n}" for n in range(log.n_items)], dtype=object),
    )
    Recommender.fit(named, FAST, out=tmp_path / "run", progress=False)
    found = Recommender.load(tmp_path / "run").recommend("u3")
    assert found[0].item.startswith("i")
    assert found[0].name == "item number " + found[0].item[1:]


def featured(kinds: int = 5) -> Log:
    """Items of five kinds in turn, and their names."""
    log = tiny.log()
    names = np.array([f"thing {'red' if n % 2 else 'blue'}" for n in range(log.n_items)], dtype=object)
    return replace(log, item_names=names, item_features=pl.DataFrame({"kind": np.arange(log.n_items) % kinds}))


def test_features_of_items_are_learned_kept_and_used_in_sessions(tmp_path: Path) -> None:
    config = replace(FAST, features=("kind", "name:words"))
    made = Recommender.fit(featured(), config, out=tmp_path, progress=False)
    rows = made.model.features.rows.weight
    assert rows.shape == (8, 16)  # five kinds; thing, red, blue
    assert (rows.abs().sum(1) > 0).all()
    again = Recommender.load(tmp_path)
    assert again.config.features == config.features
    assert again.recommend(7) == made.recommend(7)
    session = again.session(history=[3, 4])
    session.update(5)
    np.testing.assert_allclose(
        [one.score for one in session.recommend()],
        [one.score for one in made.recommend(history=[3, 4, 5])],
        rtol=1e-4,
    )
    with pytest.raises(InputError, match="holds a run with other features of its items"):
        Recommender.fit(featured(kinds=4), config, out=tmp_path, progress=False)
    with pytest.raises(InputError, match="has no column 'kinds' of items: did you mean 'kind'"):
        Recommender.fit(featured(), replace(FAST, features=("kinds",)), progress=False)


def test_validation_while_training_with_features_is_that_of_the_weights_at_that_time(tmp_path: Path) -> None:
    config = replace(FAST, features=("kind",), train=replace(FAST.train, epochs=3, patience=3))
    made = Recommender.fit(featured(), config, out=tmp_path / "run", progress=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    seen = [line["valid/ndcg@10"] for line in lines if "valid/ndcg@10" in line]
    assert max(seen) == pytest.approx(made.evaluate(valid=True)["ndcg@10"], abs=1e-6)
    assert len(set(seen)) == len(seen)  # rows of items that are kept from an earlier epoch would repeat


def test_features_carry_over_to_items_that_are_rarely_taken() -> None:
    rng = np.random.default_rng(0)
    # each user keeps to one of four kinds of 50 items; an item is taken three times, too seldom to be known by itself
    items = np.concatenate([4 * rng.choice(50, 15, replace=False) + user % 4 for user in range(40)])
    frame = pl.DataFrame({"user": np.arange(600) // 15, "item": items, "time": np.arange(600)})
    log = prism.read_log(frame)
    log = replace(log, item_features=pl.DataFrame({"kind": log.item_ids % 4}))
    config = replace(tiny.CONFIG, cutoffs=(50,), train=replace(tiny.CONFIG.train, epochs=12, lr=0.01))
    plain, informed = (
        Recommender.fit(log, replace(config, features=features), progress=False).evaluate()["hit@50"]
        for features in ((), ("kind",))
    )
    assert plain < 0.6
    assert informed > 0.9


def test_a_run_is_not_mixed_with_another(tmp_path: Path) -> None:
    Recommender.fit(tiny.log(), FAST, out=tmp_path, progress=False)
    with pytest.raises(InputError, match="holds another run: dim is 16 there and 32 here; choose another folder"):
        Recommender.fit(tiny.log(), replace(FAST, dim=32), out=tmp_path, progress=False)
    other = replace(tiny.log(), times=tiny.log().times + 1)
    with pytest.raises(InputError, match="holds a run on other events"):
        Recommender.fit(other, FAST, out=tmp_path, progress=False)


def test_the_papers_protocol_reports_the_papers_cut_offs_unless_others_are_given() -> None:
    assert FitConfig().ranks == (10, 50, 200)
    assert FitConfig(protocol="paper").ranks == (100, 200, 500)
    assert FitConfig(protocol="paper", cutoffs=(10,)).ranks == (10,)
    paper = FitConfig(protocol="paper")
    assert FitConfig.from_json(paper.to_json()) == paper
    assert not FitConfig().differences(FitConfig(cutoffs=(10, 50, 200)))  # of a run begun when they were spelled out


def test_what_is_no_run_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a run: it has no config\.json"):
        Recommender.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file: give a folder"):
        Recommender.fit(tiny.log(), FAST, out=tmp_path / "file", progress=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mixer": "prizm"}, "unknown mixer 'prizm': did you mean 'prism'"),
        ({"mixer": "prism:stepps=1"}, "mixer 'prism' has no field 'stepps': did you mean 'steps'"),
        ({"mixer": "prism:steps"}, "mixer 'prism:steps': 'steps' is neither field=value nor a preset"),
        ({"mixer": "prism,attention"}, "mixer 'prism,attention' lists 2 for 1 layers"),
        ({"protocol": "leave-two-out"}, "unknown protocol 'leave-two-out': did you mean 'leave-one-out'"),
        ({"cutoffs": ()}, "cutoffs is empty"),
        ({"features": ("name:letters",)}, "features takes column or column:words, got 'name:letters'"),
        ({"dropout": 1.0}, "dropout must be in"),
    ],
)
def test_a_wrong_config_is_refused_before_anything_is_read(fields: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(tiny.CONFIG, **fields)


def test_a_config_survives_its_json() -> None:
    config = replace(tiny.CONFIG, mixer="prism:steps=0,keys=shared", cutoffs=(5,))
    assert type(config).from_json(config.to_json()) == config
    assert config.model().backbone.mixers[0].steps == 0


def test_runs_that_keep_a_mixers_fields_apart_still_load() -> None:
    config = replace(tiny.CONFIG, mixer="prism:steps=0,keys=shared")
    older = json.loads(config.to_json()) | {"mixer": "prism", "mixer_options": ["steps=0", "keys=shared"]}
    assert type(config).from_json(json.dumps(older)) == config


def test_runs_from_before_a_field_existed_have_its_default() -> None:
    values = json.loads(tiny.CONFIG.to_json())
    for name in ("ffn", "features"):
        del values[name]
    assert type(tiny.CONFIG).from_json(json.dumps(values)) == tiny.CONFIG


def test_a_mixer_that_knows_no_order_gets_positions_unless_told_otherwise() -> None:
    def positions(**fields: object) -> int:
        return replace(tiny.CONFIG, **fields).model().backbone.positions

    assert positions(mixer="sasrec") == positions(mixer="prism", positions=True) == tiny.CONFIG.batching.length + 1
    assert positions(mixer="prism") == positions(mixer="sasrec", positions=False) == 0


def test_the_package_offers_the_facade_without_importing_it() -> None:
    assert prism.Recommender is Recommender
    assert prism.read_log.__module__ == "prism.recommend.data.logs"
    with pytest.raises(AttributeError, match="no attribute 'Recomender'"):
        prism.Recomender  # noqa: B018


def test_training_beats_chance_on_a_log_with_structure() -> None:
    config = replace(tiny.CONFIG, cutoffs=(5,), train=replace(tiny.CONFIG.train, epochs=15, lr=0.01))
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        found = Recommender.fit(tiny.log(), config, progress=False).evaluate()
    assert found["hit@5"] > 2 * 5 / 50
