"""docs/recommendation.md: its commands and its Python run as they stand, in its order, in an empty folder."""

import re
import shlex
from pathlib import Path

import polars as pl
import pytest

from prism import cli

PAGE = (Path(__file__).parents[2] / "docs" / "recommendation.md").read_text()


def test_every_command_and_example_of_the_tutorial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for language, block in re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL):
        if language == "python":
            exec(compile(block, "recommendation.md", "exec"), names)
        elif language == "sh":
            for line in block.splitlines():
                program, *words = shlex.split(line)
                assert program == "prism"
                cli.main(words)
        else:
            assert Path("events.csv").read_text().startswith(block)
    rows = pl.read_parquet("recommendations.parquet")
    assert rows.columns == ["user", "rank", "item", "score"]
    assert rows["user"].n_unique() == 300
    assert rows.height == 3000
    shown = capsys.readouterr().out
    assert "item-knn" in shown
