"""From a run to the model that answers: refit, export, later events, update, similar items, reasons."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from support import tiny

from prism.cli import main
from prism.errors import InputError
from prism.files import only_one
from prism.recommend.answer.baseline import exportable
from prism.recommend.answer.because import because
from prism.recommend.data.items import with_items
from prism.recommend.data.log import Log
from prism.recommend.data.logs import read_log
from prism.recommend.data.merge import items_alone, merge
from prism.recommend.data.splits import split
from prism.recommend.evaluation.baselines import BASELINES
from prism.recommend.live.pool import SessionPool
from prism.recommend.model.experts.tables import WINDOW
from prism.recommend.recommender import Recommender
from prism.recommend.runs.export import export
from prism.recommend.runs.refit import best_epochs, refit
from prism.recommend.runs.update import update


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("production") / "run"
    tiny.fit(folder)
    return folder


def featured(**fields: object) -> Recommender:
    log = tiny.log()
    shelves = [f"s{n % 4}" if n % 5 else None for n in range(log.n_items)]
    log = with_items(log, log.item_ids.tolist(), name=[f"item {n}" for n in log.item_ids], shelf=shelves)
    config = replace(tiny.CONFIG, heads=2, features=("shelf",), **fields)
    made = Recommender._untrained(split(log, config.protocol), config)
    with torch.no_grad():
        made.model.features.rows.weight.normal_()
    return made


def pairs(found: list) -> list[tuple[object, float]]:
    return [(one.item, one.score) for one in found]


def test_refitting_trains_on_every_event_for_as_many_epochs_as_validation_found_best(run: Path, tmp_path: Path) -> None:
    epochs = best_epochs(run)
    made = refit(run, tmp_path / "all", progress=False)
    assert made.split.train.n_events == tiny.log().n_events
    assert made.config.train.epochs == epochs
    assert best_epochs(tmp_path / "all") == epochs
    assert made.excludes_seen  # as the run's protocol had it
    again = Recommender.load(tmp_path / "all")
    assert again.excludes_seen
    assert pairs(again.recommend(5)) == pairs(made.recommend(5))
    with pytest.raises(InputError, match="nothing to evaluate on"):
        again.evaluate()


def test_an_exported_model_answers_as_its_run_does_and_has_no_events(run: Path, tmp_path: Path) -> None:
    before = Recommender.load(run)
    export(before, tmp_path / "model")
    model = Recommender.load(tmp_path / "model")
    history = before.log.item_ids[before.log.history(3)].tolist()
    assert pairs(model.recommend(history=history)) == pairs(before.recommend(3))
    assert model.log.n_events == model.log.n_users == 0
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "items.parquet", "model.json", "model.safetensors",
    ]  # fmt: skip
    with pytest.raises(InputError, match="user 3 is unknown: an exported model has no users' events"):
        model.recommend(3)


def test_an_exported_model_keeps_features_and_the_table_of_items(tmp_path: Path) -> None:
    before = featured()
    export(before, tmp_path / "model")
    model = Recommender.load(tmp_path / "model")
    assert pairs(model.recommend(history=[3, 9])) == pairs(before.recommend(history=[3, 9]))
    only = model.recommend(history=[3, 9], allow={"shelf": ["s1", "s2"]}, deny={"shelf": "s2"}, k=50)
    assert only
    assert {int(str(one.item)) % 4 for one in only} == {1}


def test_loading_an_exported_model_takes_less_than_a_second_whatever_the_log(run: Path, tmp_path: Path) -> None:
    export(Recommender.load(run), tmp_path / "model")
    Recommender.load(tmp_path / "model")
    start = time.perf_counter()
    Recommender.load(tmp_path / "model")
    assert time.perf_counter() - start < 1


def damage(name: str) -> Callable[[Path], None]:
    def flip(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return flip


def another_version(folder: Path) -> None:
    about = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(about | {"version": 99}))


def without_checksums(folder: Path) -> None:
    about = json.loads((folder / "model.json").read_text())
    del about["checksums"]
    (folder / "model.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (damage("model.safetensors"), "is damaged: its checksum is not that of model.json"),
        (damage("items.parquet"), "is damaged"),
        (another_version, "has version 99 of the format and this prism reads version 4"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be read: No such file"),
        (lambda folder: (folder / "model.json").write_text("[]"), "model.json is not a JSON object but list: export"),
        (lambda folder: (folder / "model.json").write_text("{"), "model.json cannot be read"),
        (without_checksums, "model.json is damaged, it has no 'checksums': export the run again"),
    ],
)
def test_a_damaged_model_is_refused_with_what_to_do(
    harm: Callable[[Path], None], said: str, run: Path, tmp_path: Path
) -> None:
    export(Recommender.load(run), tmp_path / "model")
    harm(tmp_path / "model")
    with pytest.raises(InputError, match=said):
        Recommender.load(tmp_path / "model")


def test_exporting_onto_a_folder_that_exists_loses_nothing(run: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(InputError, match="exists: give a new folder"):
        export(Recommender.load(run), tmp_path / "model")


def later_events(**columns: list) -> Log:
    return read_log(pl.DataFrame(columns), later=True)


def test_merged_logs_keep_codes_order_by_time_and_take_no_event_twice() -> None:
    log = read_log(pl.DataFrame({"user": [1, 1, 2, 2], "item": [5, 6, 5, 5], "time": [10, 30, 10, 10]}))
    later = read_log(
        pl.DataFrame({"user": [1, 1, 3, 2, 2, 2], "item": [6, 9, 5, 5, 5, 5], "time": [30, 20, 40, 10, 10, 10]})
    )
    merged = merge(log, later)
    assert merged.known == 3  # (1, 6, 30), and two of the three of user 2, who had two already
    assert merged.log.user_ids.tolist() == [1, 2, 3]
    assert merged.log.item_ids.tolist() == [5, 6, 9]
    assert [merged.log.item_ids[merged.log.history(user)].tolist() for user in range(3)] == [[5, 9, 6], [5, 5, 5], [5]]
    assert merged.new.tolist() == [False, True, False, False, False, True, True]


def test_what_a_later_table_calls_an_item_replaces_its_name_and_what_it_leaves_out_stays() -> None:
    first = with_items(tiny.log(), [1, 2, 3], name=["one", "two", "three"])
    later = items_alone(pl.DataFrame({"item": [2, 3, 99], "name": ["zwei", None, "new"]}))
    log = merge(first, later).log
    assert log.item_names is not None
    names = dict(zip(log.item_ids.tolist(), log.item_names.tolist(), strict=True))
    assert [names[n] for n in (1, 2, 3, 99)] == ["one", "zwei", "three", "new"]


def test_later_events_have_the_columns_of_the_first_log_unless_they_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {"user": "Kunde", "item": "Artikel Nr.", "time": "Gekauft am"}
    frame = tiny.log().frame().rename(odd)
    end = int(tiny.log().times.max())
    frame.write_csv(tmp_path / "log.csv")
    pl.DataFrame({"Artikel Nr.": range(50), "Bezeichnung": [f"Ding {n}" for n in range(50)]}).write_csv(
        tmp_path / "items.csv"
    )
    pl.DataFrame({"Kunde": [3, 3], "Artikel Nr.": [7, 8], "Gekauft am": [end + 1, end + 2]}).write_csv(
        tmp_path / "new.csv"
    )
    log = read_log(tmp_path / "log.csv", **odd, items=tmp_path / "items.csv", item_name="Bezeichnung")
    made = Recommender._untrained(split(log, tiny.CONFIG.protocol), replace(tiny.CONFIG, heads=2))
    made.save(tmp_path / "run")
    export(made, tmp_path / "model")
    for folder in ("run", "model"):
        found = Recommender.load(tmp_path / folder).with_events(tmp_path / "new.csv")
        latest = found.log.history(found.log.user_code(3))[-2:]
        assert found.log.item_ids[latest].tolist() == [7, 8]
        with pytest.raises(SystemExit):
            main(["recommend", str(tmp_path / folder), "--user", "3", "--events", str(tmp_path / "items.csv")])
        assert "name them as in the first log: Kunde, Gekauft am" in capsys.readouterr().err
    main(f"update {tmp_path}/run --events {tmp_path}/new.csv --items {tmp_path}/items.csv".split())
    updated = Recommender.load(tmp_path / "run-updated").log
    assert updated.item_label(updated.item_code(7)) == "Ding 7"
    assert updated.columns == {**odd, "name": "Bezeichnung"}


def test_later_events_move_a_users_recommendations_as_the_longer_history_would(run: Path) -> None:
    made = Recommender.load(run)
    user, history = made.log.user_ids[4], made.log.item_ids[made.log.history(4)].tolist()
    after = int(made.log.times.max()) + 100
    later = later_events(user=[int(user), 10**6], item=[7, 3], time=[after, after + 1])
    now = made.with_events(later)
    assert pairs(now.recommend(user)) == pairs(made.recommend(history=[*history, 7]))
    assert pairs(now.recommend(10**6)) == pairs(made.recommend(history=[3]))
    assert [one.item for one in now.session(10**6).recommend()] == [one.item for one in made.recommend(history=[3])]


def test_many_users_are_answered_as_each_alone_in_the_order_asked_for(run: Path) -> None:
    made = Recommender.load(run)
    asked = [int(made.log.user_ids[n]) for n in (9, 2, 30, 2)]
    frame = made.recommend(users=asked, k=3)
    assert frame["user"].to_list() == [user for user in asked for _ in range(3)]
    for n, user in enumerate(asked):
        alone = made.recommend(user, k=3)
        part = frame[3 * n : 3 * n + 3]
        assert part["item"].to_list() == [one.item for one in alone]
        np.testing.assert_allclose(part["score"].to_numpy(), [one.score for one in alone], rtol=1e-5)
    with pytest.raises(InputError, match="user 'nobody' is not in"):
        made.recommend(users=[asked[0], "nobody"])
    with pytest.raises(InputError, match=r"for many, give users="):
        made.recommend(asked)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda made: made.recommend(history="31"), r"history wants several values, .* '31': give history=\['31'\]"),
        (lambda made: made.recommend(users="31"), "users wants several values"),
        (lambda made: made.recommend(3, deny="31"), "deny wants several values"),
        (lambda made: made.similar(3, allow="31"), "allow wants several values"),
        (lambda made: made.session(history="31"), "history wants several values"),
        (lambda made: SessionPool(made).update("31", "31"), "users wants several values"),
        (lambda made: SessionPool(made).recommend("31"), "users wants several values"),
    ],
)
def test_one_text_is_not_taken_for_several_ids(run: Path, ask: Callable, said: str) -> None:
    with pytest.raises(InputError, match=said):
        ask(Recommender.load(run))


def test_a_recommender_says_what_it_is(run: Path, tmp_path: Path) -> None:
    made = Recommender.load(run)
    assert repr(made) == "<Recommender: a run of run, prism, 50 items>"
    export(made.with_baseline("item-knn"), tmp_path / "model")
    model = Recommender.load(tmp_path / "model")
    assert repr(model) == f"<Recommender: model {model.id} of model, the baseline item-knn, 50 items>"


def test_a_simple_baseline_answers_in_place_of_the_model_where_that_is_asked_for(run: Path, tmp_path: Path) -> None:
    made = Recommender.load(run).with_baseline("popularity")
    seen = {7, 12}
    wanted = [int(code) for code in np.argsort(-made.split.train.item_counts(), kind="stable")]
    ids = made.log.item_ids
    found = made.recommend(history=[7, 12], k=5, exclude_seen=True)
    assert [one.item for one in found] == [ids[code] for code in wanted if ids[code] not in seen][:5]
    again = made.recommend(history=[], k=5, exclude_seen=True)  # what was left out once is not left out for ever
    assert [one.item for one in again] == [ids[code] for code in wanted][:5]
    assert made.recommend(users=made.log.user_ids[:3].tolist(), k=2).height == 6
    export(Recommender.load(run), tmp_path / "model")
    with pytest.raises(InputError, match="baseline popularity: an exported model has no events"):
        Recommender.load(tmp_path / "model").with_baseline("popularity")
    with pytest.raises(InputError, match="did you mean"):
        made.with_baseline("popularty")


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_answers_live_and_exported_as_it_does_for_whole_histories(
    run: Path, tmp_path: Path, name: str
) -> None:
    made = Recommender.load(run).with_baseline(name)
    assert made.key != Recommender.load(run).key  # a state of one is none of the other
    answering = [made]
    if exportable(name):
        export(made, tmp_path / "model")
        answering.append(Recommender.load(tmp_path / "model"))
        with pytest.raises(InputError, match=f"update the run, then export it with --baseline {name}"):
            update(answering[1], merge(answering[1].log, made.log), None)
    else:
        with pytest.raises(InputError, match="other users' events, which an exported model never holds"):
            export(made, tmp_path / "model")
        assert not (tmp_path / "model").exists()
    items = [7, 12, 3, 7, 40, 22, 3]
    for one in answering:
        session, pool = one.session(history=items[:2]), SessionPool(one, 2)
        pool.load("u", items[:2])
        for n in range(2, len(items) + 1):
            wanted = [(x.item, x.score) for x in made.recommend(history=items[:n], exclude_seen=False)]
            again = one.session(state=session.state())
            for found in (session.recommend(exclude_seen=False), again.recommend(exclude_seen=False)):
                assert [(x.item, x.score) for x in found] == wanted
            (pooled,) = pool.recommend(["u"], exclude_seen=False)
            assert [(x.item, x.score) for x in pooled] == wanted
            if n < len(items):
                session.update(items[n])
                pool.update(["u"], [items[n]])
        assert pool.state("u") == session.state()


def test_similar_items_have_the_largest_cosine_and_exclude_the_item() -> None:
    made = featured()
    table = torch.nn.functional.normalize(made.model.table.detach(), dim=-1)
    scores = table @ table[7]
    scores[7] = -2
    found = made.similar(made.log.item_ids[7], k=5)
    assert [one.item for one in found] == made.log.item_ids[scores.topk(5).indices.numpy()].tolist()
    assert found[0].name is not None


def test_a_reason_is_the_fall_of_the_score_without_the_event() -> None:
    made = featured()
    history = [3, 9, 4, 31, 7]
    with torch.no_grad():
        whole = dict(pairs(made.recommend(history=history, k=50, exclude_seen=False)))
    reasons = because(made, 12, history=history, k=5)
    assert len(reasons) == 5
    for reason in reasons:
        at = len(history) - 1 - reason.age
        assert history[at] == reason.item
        rest = history[:at] + history[at + 1 :]
        without = dict(pairs(made.recommend(history=rest, k=50, exclude_seen=False)))
        assert reason.effect == pytest.approx(whole[12] - without[12], abs=1e-5)
    effects = [reason.effect for reason in reasons]
    assert effects == sorted(effects, reverse=True)


def test_an_update_learns_new_events_and_items_and_leaves_the_run_alone(run: Path, tmp_path: Path) -> None:
    before = Recommender.load(run)
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    after, new = int(before.log.times.max()), 777
    rows = [(user, item, after + n) for user in range(1000, 1020) for n, item in enumerate([3, 9, new, 9, new])]
    users, items, times = (list(column) for column in zip(*rows, strict=True))
    merged = merge(before.log, later_events(user=users, item=items, time=times))
    made, change = update(before, merged, tmp_path / "next", epochs=8, lr=1e-2, progress=False)
    assert change.events == 100
    assert change.users == 20
    assert change.items["items they are taken with"] == 1
    assert change.predicted
    assert change.kept is not None
    assert 0 < change.kept <= 1
    assert made.model.items == before.model.items + 1
    # what follows 3, 9 in the new events is the new item
    assert made.recommend(history=[3, 9], k=1)[0].item == new
    loaded = Recommender.load(tmp_path / "next")
    assert pairs(loaded.recommend(history=[3, 9])) == pairs(made.recommend(history=[3, 9]))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == kept
    with pytest.raises(InputError, match="exists: give a new folder"):
        update(before, merged, tmp_path / "next", progress=False)


def test_nothing_else_works_in_a_folder_while_an_update_trains_there(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Recommender.load(run)
    later = later_events(user=[5, 6], item=[3, 4], time=[2_000_000_000, 2_000_000_000])
    seen = []

    def train(*_: object, out: Path, **__: object) -> None:
        with pytest.raises(InputError, match="is in use by another process"), only_one(out):
            seen.append("in")
        seen.append("refused")

    monkeypatch.setattr("prism.recommend.runs.update.train", train)
    update(before, merge(before.log, later), tmp_path / "next", progress=False)
    assert seen == ["refused"]


def test_with_the_experts_similar_items_are_those_taken_near_one_for_how_popular_both_are() -> None:
    config = replace(tiny.CONFIG, experts=("visit",))
    made = Recommender._untrained(split(tiny.log(), config.protocol), config)
    made.fit_experts()
    train, counts = made.split.train, np.zeros((made.model.items, made.model.items))
    for user in range(train.n_users):
        history = train.history(user).tolist()
        for a, item in enumerate(history):
            for other in history[max(0, a - WINDOW) : a + WINDOW + 1]:
                counts[item, other] += other != item
    cosine = counts / np.sqrt(np.outer(counts.sum(1), counts.sum(1)))
    found = made.similar(made.log.item_ids[7], k=made.model.items)
    near = [one for one in found if one.score > 0]
    wanted = np.sort(cosine[7][cosine[7] > 0])[::-1]
    np.testing.assert_allclose([one.score for one in near], wanted, rtol=1e-5)
    assert len(found) == made.model.items - 1  # the others come after, by their rows


def test_an_item_that_only_the_table_knows_starts_from_those_that_share_its_features() -> None:
    before = featured()
    table = pl.DataFrame({"item": [1, 2, 3, 4, 5000], "shelf": ["s1", "s2", "s3", "s0", "s1"], "name": list("abcde")})
    merged = merge(before.log, items_alone(table))
    made, change = update(before, merged, None, progress=False)
    assert change.events == 0
    assert change.items["items with the same features"] == 1
    near = [int(str(one.item)) % 4 for one in made.similar(5000, k=6)]
    assert near.count(1) >= 5  # its shelf
    found = made.recommend(history=[3], allow=[5000])
    assert [(one.item, one.name) for one in found] == [(5000, "e")]
    # the items that were there are as they were
    rest = made.recommend(history=[3, 9], deny=[5000], k=50)
    assert [one.item for one in rest] == [one.item for one in before.recommend(history=[3, 9], k=50)]


def test_for_the_experts_an_item_without_events_is_as_the_one_taken_least(tmp_path: Path) -> None:
    before = featured(experts=("next", "popular", "lately"))
    before.fit_experts()
    table = pl.DataFrame({"item": [1, 2, 3, 4, 5000], "shelf": ["s1", "s2", "s3", "s0", "s1"], "name": list("abcde")})
    merged = merge(before.log, items_alone(table))
    update(before, merged, tmp_path / "run", progress=False, device="cpu")
    export(Recommender.load(tmp_path / "run", device="cpu"), tmp_path / "model")
    for folder in ("run", "model"):
        made = Recommender.load(tmp_path / folder, device="cpu")
        assert made.experts is not None
        bank = made.experts.tables.bank
        np.testing.assert_array_equal(bank[:, -1], bank[:, :-1].min(1))
        with torch.no_grad():  # what is rare is likely: all that was trained on lies within a narrow range
            made.model.gates.out.bias[-3:] = -3.0
        shares = {one.item: one.score for one in made.recommend(history=[3, 7], k=60, exclude_seen=False)}
        assert shares[5000] < -1


def test_an_item_of_a_table_that_the_model_does_not_look_at_starts_from_it_and_has_the_form_of_the_others(
    run: Path, tmp_path: Path
) -> None:
    before = Recommender.load(run)
    rows = [f"{n},s{n % 4},name {n}" for n in before.log.item_ids.tolist()]
    (tmp_path / "items.csv").write_text("\n".join(["item,shelf,name", *rows, "5000,s1,new"]) + "\n", encoding="utf-8")
    merged = merge(before.log, items_alone(tmp_path / "items.csv"))
    made, change = update(before, merged, None, progress=False)
    assert change.items == {
        "items with the same features": 1,
        "items they are taken with": 0,
        "the mean of all items": 0,
    }
    shelf = [
        code for code, item in enumerate(before.log.item_ids.tolist()) if code < before.model.items and item % 4 == 1
    ]
    wanted = before.model.embedding.weight[shelf].mean(0)
    torch.testing.assert_close(made.model.embedding.weight[made.log.item_code(5000)], wanted)
    assert made.log.item_ids.dtype == before.log.item_ids.dtype  # numbers, as the log has them
    assert change.kept is not None
    assert change.kept > 0.9


def test_an_exported_model_with_experts_is_not_updated(tmp_path: Path) -> None:
    before = Recommender._untrained(split(tiny.log(), "all"), replace(tiny.CONFIG, experts=("next",), protocol="all"))
    before.fit_experts()
    export(before, tmp_path / "model")
    model, later = Recommender.load(tmp_path / "model"), later_events(user=[1], item=[3], time=[10**9])
    with pytest.raises(InputError, match="update the run that it was exported from"):
        update(model, merge(model.log, later), tmp_path / "next", progress=False)
    assert not (tmp_path / "next").exists()


def test_an_update_with_nothing_new_is_refused(run: Path) -> None:
    before = Recommender.load(run)
    with pytest.raises(InputError, match="nothing is new"):
        update(before, merge(before.log, before.log), None, progress=False)


def test_the_commands_lead_from_a_run_to_a_model_and_beyond(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "run")
    model, events = tmp_path / "model", tmp_path / "new.csv"
    pl.DataFrame({"user": [90, 90], "item": [3, 9], "time": [10**9, 10**9 + 5]}).write_csv(events)
    main(["refit", str(tmp_path / "run")])
    main(["export", str(tmp_path / "run-all"), str(model)])
    main(["recommend", str(model), "--events", str(events), "--user", "90"])
    main(["similar", str(model), "3", "--k", "2"])
    main(["because", str(model), "9", "--history", "3", "4"])
    main(["update", str(tmp_path / "run-all"), "--events", str(events)])
    said = capsys.readouterr().out
    for part in ("validation was best after", "next: prism export", "of 50 items", "similar to 3", "because of",
                 "2 new events, 1 new users, 0 new items", "run-all-updated: the updated run"):  # fmt: skip
        assert part in said
    with pytest.raises(SystemExit):
        main(["update", str(tmp_path / "run-all")])
    assert "nothing to learn from: give --events NEW" in capsys.readouterr().err
