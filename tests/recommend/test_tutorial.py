"""docs/recommendation.md: its commands and its Python run as they stand, in its order, in an empty folder."""

from pathlib import Path

import polars as pl
import pytest
from support.pages import run_page


def is_the_log(block: str) -> None:
    assert Path("events.csv").read_text().startswith(block)


def test_every_command_and_example_of_the_tutorial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("recommendation.md", other=is_the_log)
    rows = pl.read_parquet("recommendations.parquet")
    assert rows.columns == ["user", "rank", "item", "score"]
    assert rows["user"].n_unique() == 300
    assert rows.height == 3000
    shown = capsys.readouterr().out
    assert "item-knn" in shown
