"""Items that a model does not know, scored by the items that share their values: as plain loops say it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny
from support.service import log_with_table

from prism.recommend.data.splits import split
from prism.recommend.live.placed import Places
from prism.recommend.model.experts import EXPERTS
from prism.recommend.model.experts.user_state import state_after
from prism.recommend.model.recommender import live_scores
from prism.recommend.recommender import Recommender

CELLS: list[dict[str, Any]] = [
    {"department": "toys|books", "year": 1991},
    {"department": "kitchen"},
    {"department": "ships", "year": "1993"},
]


def untrained(**fields: Any) -> Recommender:
    config = replace(tiny.CONFIG, heads=2, **fields)
    made = Recommender._untrained(split(log_with_table(), config.protocol), config)
    if config.experts:
        made.fit_experts()
        assert made.model.gates is not None
        with torch.no_grad():  # as if trained
            made.model.gates.out.weight.normal_(0, 0.5)
            made.model.gates.out.bias.normal_(0, 0.5)
    return made


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


@pytest.mark.parametrize("bias", [False, True])
def test_what_the_experts_add_is_the_mean_of_what_they_add_to_like_items_that_were_not_taken(bias: bool) -> None:
    made = untrained(experts=EXPERTS, item_bias=bias)
    model, experts = made.model.eval(), made.experts
    assert experts is not None
    places = Places(made)
    found = [places.place(cells) for cells in CELLS]
    placed = places.placed([one for one in found if one is not None])
    assert placed is not None
    assert placed.rows.shape[0] == 3
    histories = [[0, 4, 8, 5], [], [2] * 5, list(range(50))]
    states = [state_after(np.array(codes, np.int32), 100 * np.arange(len(codes))) for codes in histories]
    features = torch.randn(4, model.table.shape[1], generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        own = model.scores(features)
        mixed = live_scores(model, experts, own.clone(), features, states, [5000] * 4)
        ours = placed.live(made, own, features, states, [5000] * 4)
    added = (mixed - own).numpy()
    for n, history in enumerate(histories):
        expected = []
        for cells, row in zip(CELLS, placed.rows, strict=True):
            left = [code for code in like(made, cells) if code not in history]
            free = [code for code in range(50) if code not in history]
            part = added[n, left].mean() if left else added[n, free].min() if free else None
            mean_bias = 0.0 if model.bias is None else float(model.bias.detach().mean())
            expected.append(None if part is None else float(features[n] @ row) + mean_bias + part)
        known = ours[n, :50].numpy() - mixed[n].numpy()
        np.testing.assert_allclose(known, known[0], atol=1e-4)  # the same but for what makes them probabilities
        if None not in expected:
            np.testing.assert_allclose(ours[n, 50:].numpy() - known[0], expected, atol=1e-4)
        assert float(ours[n].exp().sum()) == pytest.approx(1, abs=1e-4)


def test_an_item_that_shares_no_value_has_no_place() -> None:
    places = Places(untrained())
    assert places.place({"department": "ships", "year": 1700}) is None
    assert places.place({}) is None
    assert places.placed([]) is None
