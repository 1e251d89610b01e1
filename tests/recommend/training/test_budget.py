"""How many epochs there is time for: measured as training will be, and by one clock for all processes."""

from pathlib import Path

import pytest
from support.clocks import settle
from support.processes import run_ranks

from prism.recommend.data.prepared.prepare import prepare_log
from prism.recommend.data.synthetic import synthetic_log


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    synthetic_log(90, 41, 3000, seed=5).frame().write_parquet(folder / "log.parquet")
    prepare_log([str(folder / "log.parquet")], folder / "data", partitions=8)
    return folder / "data"


@pytest.mark.parametrize("prepared", [False, True])
def test_processes_that_measure_different_times_train_for_as_many_epochs(
    prepared: bool, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    run_ranks(2, settle, data if prepared else None, tmp_path / "out", seconds=100, polars=True)
    first, other = ((tmp_path / "out" / f"{rank}.txt").read_text().splitlines() for rank in range(2))
    assert first == other
    assert first[-1].startswith("epochs 5")  # as many as the rule allows
    assert len(first) == (1 if prepared else 3)  # two of them rehearsals
