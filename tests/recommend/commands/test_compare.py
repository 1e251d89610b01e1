"""Comparisons: one folder per run, done once, in one table with the simple baselines."""

from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny

from prism import cli
from prism.errors import InputError
from prism.layers.prism import PrismConfig
from prism.recommend.commands.compare import compare_on, variant
from prism.recommend.data.splits import split
from prism.recommend.evaluation.baselines import BASELINES
from prism.recommend.evaluation.rows import Row, mean_ranks, refuse_failures, show_rows
from prism.recommend.recommender import Recommender

FAST = replace(tiny.CONFIG, train=replace(tiny.CONFIG.train, epochs=1))
NAMES = ("prism:steps=0", "linear-attention")
COUNT = len(list(BASELINES))


def test_a_comparison_started_again_computes_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    divided = split(tiny.log(), "leave-one-out")
    configs = {name: variant(FAST, name) for name in NAMES}
    first = compare_on(divided, FAST, configs, 2, tmp_path, progress=False)
    assert [row.name for row in first] == [*BASELINES, *NAMES]
    assert first[COUNT].runs[0] != first[COUNT].runs[1]
    (tmp_path / "linear-attention-seed1" / "test.json").unlink()
    fits = []
    whole = Recommender.fit_split.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(Recommender, "fit_split", classmethod(lambda *a, **k: fits.append(a[3].name) or whole(*a, **k)))
    again = compare_on(divided, FAST, configs, 2, tmp_path, progress=False)
    assert fits == ["linear-attention-seed1"]
    assert again == first
    show_rows("title", again)
    shown = capsys.readouterr().out
    assert all(row.name in shown for row in first)
    assert "standard deviation of 2 seeds" in shown


def test_a_run_of_a_comparison_can_be_loaded(tmp_path: Path) -> None:
    divided = split(tiny.log(), "leave-one-out")
    rows = compare_on(divided, FAST, {"prism": FAST}, 1, tmp_path, progress=False)
    assert Recommender.load(tmp_path / "prism-seed0").evaluate()["mrr"] == rows[COUNT].runs[0]["mrr"]


def test_runs_that_fail_leave_the_others_alone_and_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    divided = split(tiny.log(), "leave-one-out")
    wild = replace(FAST, train=replace(FAST.train, lr=1e30))
    configs = {"wild": wild, "prism": FAST}
    rows = compare_on(divided, FAST, configs, 2, tmp_path, progress=False)
    assert [(len(row.runs), len(row.failures)) for row in rows[COUNT:]] == [(0, 2), (2, 0)]
    show_rows("title", rows)
    shown = " ".join(capsys.readouterr().out.split())
    assert "wild-seed1 failed: the loss is nan at step 2" in shown
    assert "│ wild │ failed │" in shown
    with pytest.raises(InputError, match=r"^2 runs failed \(wild-seed0, wild-seed1\), the others are done"):
        refuse_failures(rows)
    refuse_failures([row for row in rows if row.runs])
    # started again, what failed is tried again and what was done is not
    again = compare_on(divided, FAST, {"wild": FAST, "prism": FAST}, 2, tmp_path / "sane", progress=False)
    assert again[COUNT].runs == again[COUNT + 1].runs == rows[COUNT + 1].runs
    assert not list(tmp_path.glob("wild*/test.*"))


def test_a_failed_run_ends_the_command_with_exit_code_2_after_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.log().frame().write_csv(tmp_path / "log.csv")
    words = f"compare {tmp_path}/log.csv --out {tmp_path}/out --mixers prism --dim 16 --layers 1 --epochs 1 --lr 1e30"
    with pytest.raises(SystemExit) as stop:
        cli.main([*words.split(), "--protocol", "leave-one-out", "--batch", "8", "--length", "20"])
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert "popularity" in said.out
    assert said.err.count("prism: ") == 1
    assert "1 run failed (prism-seed0)" in said.err.splitlines()[-1]


def test_two_processes_get_what_one_gets(tmp_path: Path) -> None:
    divided = split(tiny.log(), "leave-one-out")
    configs = {name: variant(FAST, name) for name in NAMES}
    rows = [compare_on(divided, FAST, configs, 1, tmp_path / str(n), progress=False, processes=n) for n in (1, 2)]
    for alone, beside in zip(*rows, strict=True):
        assert alone.runs[0] == pytest.approx(beside.runs[0], rel=1e-4)  # threads differ, so may the last digits


def test_ranks_are_averaged_over_metrics_and_shared_in_ties() -> None:
    rows = [Row(name, ({"a": a, "b": b},)) for name, a, b in (("x", 3, 1), ("y", 2, 1), ("z", 1, 0))]
    assert mean_ranks(rows, ["a", "b"]) == [1.25, 1.75, 3.0]


def test_options_of_a_mixer_are_read_as_what_they_are() -> None:
    options = "prism:base_write=false,solver_rank=None,anchor=none,steps=3"
    mixer = variant(tiny.CONFIG, options).model().backbone.mixer
    assert mixer == PrismConfig(heads=2, base_write=False, solver_rank=None, anchor="none", steps=3)
