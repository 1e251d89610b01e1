"""The experts' weights before training: by which objective they are fitted is asked of validation."""

from dataclasses import replace

import pytest

from prism.recommend.config import FitConfig
from prism.recommend.data.log import Log
from prism.recommend.data.splits import split
from prism.recommend.data.synthetic import kinds_log, synthetic_log
from prism.recommend.recommender import Recommender
from prism.recommend.training.opening import FOCUSES

CONFIG = FitConfig(dim=8)


@pytest.mark.parametrize("log", [synthetic_log(60, 50, 3000), kinds_log(40, 60, 2000, kinds=4)], ids=["walk", "kinds"])
def test_of_two_openings_the_one_that_is_ahead_on_validation_is_taken_and_kept(log: Log) -> None:
    divided = split(log, "global-time")
    found = {}
    for focus in FOCUSES:
        made, _ = Recommender.opening(divided, replace(CONFIG, opening=focus))
        assert made.config.opening == focus
        found[focus] = made.evaluate(valid=True)["ndcg@10"]
    assert len(set(found.values())) == len(FOCUSES)
    chosen, _ = Recommender.opening(divided, CONFIG)
    assert chosen.config.opening == max(found, key=lambda focus: found[focus])
    assert chosen.evaluate(valid=True)["ndcg@10"] == pytest.approx(max(found.values()))
    assert FitConfig.from_json(chosen.config.to_json()) == chosen.config


def test_where_nothing_is_left_to_ask_the_usual_opening_is_taken() -> None:
    made, _ = Recommender.opening(split(synthetic_log(60, 50, 3000), "all"), replace(CONFIG, protocol="all"))
    assert made.config.opening == FOCUSES[0]


def test_training_goes_on_with_what_the_opening_minimised_unless_told_otherwise() -> None:
    log, quick = synthetic_log(60, 50, 3000), {"epochs": 1, "rehearsal": False}
    for focus in FOCUSES:
        config = replace(CONFIG, opening=focus).with_options(quick)
        assert Recommender.fit(log, config, progress=False, device="cpu").config.objective.focus == focus
        made = Recommender.fit(log, config.with_options({"focus": 0.25}), progress=False, device="cpu")
        assert made.config.objective.focus == 0.25
