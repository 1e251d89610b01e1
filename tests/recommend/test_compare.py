"""Comparisons: one folder a run, done once, in one table with the simple baselines."""

from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny

from prism.data.splits import split
from prism.recommend.compare import Row, compare_on, mean_ranks, show_rows, variant
from prism.recommend.recommender import Recommender

FAST = replace(tiny.CONFIG, train=replace(tiny.CONFIG.train, epochs=1))
NAMES = ("prism:steps=0", "linear-attention")


def test_a_comparison_started_again_computes_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    divided = split(tiny.log(), "leave-one-out")
    configs = {name: variant(FAST, name) for name in NAMES}
    first = compare_on(divided, FAST, configs, 2, tmp_path, progress=False)
    assert [row.name for row in first] == ["popularity", "repeat-last", "item-knn", *NAMES]
    assert first[3].runs[0] != first[3].runs[1]
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
    assert Recommender.load(tmp_path / "prism-seed0").evaluate()["mrr"] == rows[3].runs[0]["mrr"]


def test_ranks_are_averaged_over_metrics_and_shared_in_ties() -> None:
    rows = [Row(name, ({"a": a, "b": b},)) for name, a, b in (("x", 3, 1), ("y", 2, 1), ("z", 1, 0))]
    assert mean_ranks(rows, ["a", "b"]) == [1.25, 1.75, 3.0]
