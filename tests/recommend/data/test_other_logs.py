"""The example of made-up logs writes files that `prism fit` reads."""

import importlib.util
from pathlib import Path

import numpy as np

from prism.recommend.data.logs import read_log
from prism.recommend.data.splits import split

EXAMPLE = Path(__file__).parents[3] / "examples" / "other_logs.py"


def test_a_log_of_the_example_is_read_as_it_was_made_and_can_be_divided(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("other_logs", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.main("tiny", str(tmp_path / "tiny.csv"), 3)
    log = read_log(tmp_path / "tiny.csv")
    events = list(made.tiny(np.random.default_rng(3)))
    assert log.n_events == len(events)
    mine = [item for user, item, _ in events if user == 7]
    code = int(np.flatnonzero(log.user_ids == 7)[0])
    assert log.item_ids[log.items[log.offsets[code] : log.offsets[code + 1]]].tolist() == mine
    assert len(split(log, "global-time").test)
