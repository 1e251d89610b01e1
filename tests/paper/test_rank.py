"""The table of what rank is for: its mixers fit its tasks, and its picture shows accuracy over length."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from support.scripts import script

from prism.paper.rank import MIXERS, SETTINGS, TRACKING, WRITING, rank
from prism.probes.settings import ProbeSettings
from prism.probes.training import ProbeTraining


def test_every_mixer_of_the_table_fits_every_task() -> None:
    for task in (*TRACKING, *WRITING):
        for mixer in MIXERS:
            SETTINGS.model(SETTINGS.probe(task), mixer).build()


def test_the_command_draws_accuracy_over_length(tmp_path: Path) -> None:
    training = ProbeTraining(steps=2, batch=4, every=1, watched=8, tested=16)
    settings = ProbeSettings(tracking_length=4, tracking_dim=8, training=training)
    rank(("running-parity", "s3"), ("prism:tracking", "gated-deltanet"), 2, settings, processes=1, out=tmp_path)
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert "at 16 tokens" in (tmp_path / "table.txt").read_text()


def test_the_pages_script_takes_over_runs_of_the_settings_that_a_table_has(tmp_path: Path) -> None:
    training = ProbeTraining(steps=2, batch=4, every=1, watched=8, tested=16)
    settings = ProbeSettings(tracking_length=4, tracking_dim=8, training=training)
    rank(("s3",), ("prism:tracking",), 1, settings, processes=1, out=tmp_path)
    page = script("rank")
    own = page.changed(json.loads(json.dumps(asdict(settings))), json.loads(json.dumps(asdict(SETTINGS))))
    assert own["tracking_length"] == 4
    assert own["batch"] == 4
    assert "lr" not in own
    before = {"task": "s3", "mixer": "prism:tracking", "seed": 0, "accuracy": 0.5, "longer": {"16": 1.0, "64": 0.9995}}
    kept = {"tables": [{"settings": own, "runs": [before, before | {"seed": 1}]}]}
    assert page.take_over(kept, tmp_path) == 1
    other, taken = kept["tables"][0]["runs"]
    assert other["seed"] == 1
    assert taken["seed"] == 0
    trained = json.loads((tmp_path / "s3" / "prism@tracking-0.json").read_text())
    assert {name: taken[name] for name in page.FIGURES} == {name: trained[name] for name in page.FIGURES}
    now = [page.figure(x) for x in (trained["accuracy"], *trained["longer"].values())]
    row = page.rows(kept["tables"][0])["s3", "prism:tracking"]
    assert row == f"| {now[0]} .500 | {now[1]} 1.000 | {now[2]} .9995 |"
    with pytest.raises(SystemExit, match=r"no table of rank\.json has the settings"):
        page.take_over({"tables": []}, tmp_path)


def test_every_run_of_the_pictures_tasks_has_a_line_in_it() -> None:
    page = script("rank")
    found = page.drawn(json.loads(page.KEPT.read_text(encoding="utf-8")))
    assert {task for task, _ in found} == set(page.PANELS)
    assert {mixer for _, mixer in found} == {mixer for _, _, mixers in page.LINES.values() for mixer in mixers}


def test_the_picture_has_medians_over_seeds_of_the_tables_that_are_drawn(tmp_path: Path) -> None:
    page = script("rank")
    runs = [
        {"task": "s3", "mixer": "prism", "seed": seed, "accuracy": x, "longer": {"128": 2 * x, "512": 0.1}}
        for seed, x in enumerate((0.5, 0.2, 0.3))
    ]
    left = {"drawn": False, "runs": [runs[0] | {"mixer": "attention"}]}
    found = page.drawn({"tables": [{"drawn": True, "runs": [*runs, runs[0] | {"task": "a5"}]}, left]})
    assert found == {("s3", "prism"): [[0.3, 0.6, 0.1], [0.5, 1.0, 0.1], [0.2, 0.4, 0.1], [0.3, 0.6, 0.1]]}
    page.draw(tmp_path / "rank.png", found)
    assert (tmp_path / "rank.png").read_bytes().startswith(b"\x89PNG")
