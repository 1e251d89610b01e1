"""The benchmark of a prepared log times both commands, and its log is one that can be foreseen."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from prism.bench.prepared import FILES, has_a_step, prepared, write_logs


def test_the_log_has_the_events_users_and_items_that_were_asked_for_and_users_walk(tmp_path: Path) -> None:
    write_logs(tmp_path, events=16_000, users=160, items=800)
    log = pl.concat(pl.read_parquet(path) for path in sorted(tmp_path.glob("*.parquet")))
    assert (log.height, log["user"].n_unique(), log["item"].n_unique()) == (16_000, 160, 800)
    step = log.sort("user", "time").select(pl.col("item").diff().over("user"))["item"].drop_nulls().to_numpy()
    assert np.isin(step, [FILES, 2 * FILES, 3 * FILES]).mean() > 0.6


def test_an_evaluation_or_half_a_line_is_no_step(tmp_path: Path) -> None:
    journal = tmp_path / "log.jsonl"
    assert not has_a_step(journal)
    journal.write_text('{"step": 0, "valid/ndcg@10": 0.1}\n{"step": 1, "loss"')
    assert not has_a_step(journal)
    journal.write_text('{"step": 0, "valid/ndcg@10": 0.1}\n{"step": 1, "loss": 2.0}\n')
    assert has_a_step(journal)


@pytest.mark.slow
def test_both_commands_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(tmp_path, events=16_000, users=160, items=800, partitions=4)
    shown = capsys.readouterr().out
    assert "prism prepare" in shown
    assert "to the end of its first step" in shown
