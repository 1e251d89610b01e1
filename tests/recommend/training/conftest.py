"""What tests of training on a prepared log share."""

from pathlib import Path

import pytest

from prism.recommend.data.prepared.prepare import prepare_log
from prism.recommend.data.synthetic import synthetic_log


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small log, prepared in eight partitions."""
    folder = tmp_path_factory.mktemp("log")
    synthetic_log(90, 41, 3000, seed=5).frame().write_parquet(folder / "log.parquet")
    prepare_log([str(folder / "log.parquet")], folder / "data", partitions=8)
    return folder / "data"
