"""Items that a model does not know, scored by the items that share their values: as plain loops say it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny
from support.service import log_with_table

from prism.recommend.data.splits import split
from prism.recommend.live.placed import Placed, Places
from prism.recommend.recommender import Recommender

CELLS: list[dict[str, Any]] = [
    {"department": "toys|books", "year": 1991},
    {"department": "kitchen"},
    {"department": "ships", "year": "1993"},
]


def untrained(**fields: Any) -> Recommender:
    config = replace(tiny.CONFIG, heads=2, **fields)
    return Recommender._untrained(split(log_with_table(), config.protocol), config)


def placed(made: Recommender) -> Placed:
    places = Places(made)
    found = places.placed([place for cells in CELLS if (place := places.place(cells)) is not None])
    assert found is not None
    assert len(found.rows) == len(CELLS)
    return found


def like(made: Recommender, cells: dict[str, Any]) -> list[int]:
    """The codes of items that share a value with these cells, each as often as it shares one."""
    table = made.log.item_features
    assert table is not None
    found = []
    for code in range(made.log.n_items):
        for column, cell in cells.items():
            theirs = str(table[column][code]).split("|")
            found += [code] * sum(value in theirs for value in str(cell).split("|"))
    return found


def test_a_placed_item_is_as_likely_as_like_items_are_in_the_mean_that_were_not_taken() -> None:
    made = untrained()
    histories = [np.array(codes, dtype=np.int32) for codes in ([0, 4, 8, 5], [], [2] * 5)]
    scores = 5 * torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    ours = placed(made).beside(scores, histories)
    assert ours[:, :50].equal(scores)
    for row, more, history in zip(scores.double(), ours[:, 50:], histories, strict=True):
        for cells, found in zip(CELLS, more.tolist(), strict=True):
            left = [code for code in like(made, cells) if code not in history]
            assert found == pytest.approx(float(row[left].exp().mean().log()), abs=1e-4)


def test_where_all_like_items_were_taken_or_are_most_unlikely_a_placed_item_is_the_least() -> None:
    made = untrained()
    scores = torch.linspace(0, 1, 50)[None]
    everything = np.arange(50, dtype=np.int32)
    assert placed(made).beside(scores, [everything])[0, 50:].tolist() == [0, 0, 0]
    steep = torch.full((1, 50), -1000.0)
    steep[0, 0] = 0  # toys
    toys, kitchen, _ = placed(made).beside(steep, [everything[:0]])[0, 50:].tolist()
    assert toys > -10
    assert kitchen == -1000


def test_an_item_that_shares_no_value_has_no_place() -> None:
    places = Places(untrained())
    assert places.place({"department": "ships", "year": 1700}) is None
    assert places.place({}) is None
    assert places.placed([]) is None
