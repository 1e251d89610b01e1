"""Questions about what comes next, and why: each about one user's own events."""

import numpy as np
import pytest
import torch
from support import tiny
from torch import Tensor

from prism.recommend.answer import because as of_because
from prism.recommend.answer.ask import after_last, log_of
from prism.recommend.data.log import Log
from prism.recommend.data.splits import Queries


@pytest.mark.parametrize("at", [None, 99])
def test_who_has_no_known_event_is_asked_at_no_time_whoever_stands_before(at: int | None) -> None:
    ids = np.array(["a", "b", "c"])
    # b took nothing but item 2, which the model does not know
    log = Log(
        offsets=np.array([0, 2, 3, 4]),
        items=np.array([0, 1, 2, 0], dtype=np.int32),
        times=np.array([10, 20, 30, 5]),
        user_ids=ids,
        item_ids=ids,
    )
    asked, queries = after_last(log, np.arange(3), 2, at=at)
    assert asked.times[queries.positions].tolist() == ([20, 0, 5] if at is None else [99, 99, 99])


def test_reasons_are_scored_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    log = tiny.log()
    user = int(np.argmax(log.lengths))
    events = slice(log.offsets[user], log.offsets[user + 1])
    one = log_of(log, log.items[events], log.times[events])
    sizes: list[int] = []

    def scorer(of: Log, queries: Queries) -> Tensor:
        sizes.append(len(queries))
        total = [
            float(of.items[of.offsets[u] : p].sum()) for u, p in zip(queries.users, queries.positions, strict=True)
        ]
        return torch.tensor(total)[:, None].expand(-1, log.n_items)

    whole = of_because.reasons(scorer, one, log.n_items, 3, last=20, k=20)
    assert len(sizes) == 1
    monkeypatch.setattr(of_because, "BLOCK_SCORES", 4 * log.n_items)
    assert of_because.reasons(scorer, one, log.n_items, 3, last=20, k=20) == whole
    assert max(sizes[1:]) == 4
    assert sum(sizes[1:]) == sizes[0]
    assert [reason.effect for reason in whole] == sorted((reason.effect for reason in whole), reverse=True)
