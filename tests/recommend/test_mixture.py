"""The mixture from outside: all ways of asking agree, answers are probabilities, an exported model gives the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import tiny

from prism.recommend.answer.ask import after_last
from prism.recommend.config import FitConfig
from prism.recommend.data.splits import split
from prism.recommend.defaults import facts_of
from prism.recommend.live.pool import SessionPool
from prism.recommend.model.experts import EXPERTS
from prism.recommend.recommender import Recommender
from prism.recommend.runs.export import export
from prism.recommend.runs.refit import refit
from prism.recommend.training.opening import fit_opening
from prism.train import checkpoints
from prism.train.journal import read_journal

HISTORY = [3, 9, 4, 4, 31, 7, 12, 40, 3, 22]
TIMES = [100, 100, 260, 5_000, 5_001, 90_000, 90_100, 91_000, 91_000, 10**6]


def mixed(mixer: str = "prism", protocol: str = "global-time", timed: bool = True) -> Recommender:
    """Untrained but for the experts, with gates that are not all alike."""
    config = replace(tiny.CONFIG, mixer=mixer, experts=EXPERTS, protocol=protocol, query_time=timed, time_gaps=timed)
    made = Recommender._untrained(split(tiny.log(), protocol), config)
    made.fit_experts()
    assert made.model.gates is not None
    torch.manual_seed(1)
    torch.nn.init.normal_(made.model.gates.out.weight)
    return made


@pytest.mark.parametrize("mixer", ["prism", "sasrec"])
@pytest.mark.parametrize("protocol", ["global-time", "leave-one-out"])
@pytest.mark.parametrize("timed", [False, True])
def test_sessions_pools_and_whole_histories_agree(mixer: str, protocol: str, timed: bool) -> None:
    made = mixed(mixer, protocol, timed)
    session, pool = made.session(history=HISTORY[:3], times=TIMES[:3]), SessionPool(made, 2)
    pool.load("one", HISTORY[:3], TIMES[:3])
    for n in range(3, len(HISTORY) + 1):
        at = TIMES[n - 1] + 50
        whole = made.recommend(history=HISTORY[:n], times=TIMES[:n], k=50, exclude_seen=False, at=at)
        again = made.session(state=session.state())
        for ours in (session, again):
            found = ours.recommend(k=50, exclude_seen=False, at=at)
            scores = {one.item: one.score for one in found}
            np.testing.assert_allclose([scores[one.item] for one in whole], [one.score for one in whole], rtol=1e-4)
        (pooled,) = pool.recommend(["one"], 50, exclude_seen=False, at=at)
        scores = {one.item: one.score for one in pooled}
        np.testing.assert_allclose([scores[one.item] for one in whole], [one.score for one in whole], rtol=1e-4)
        if n < len(HISTORY):
            session.update(HISTORY[n], TIMES[n])
            pool.update(["one"], [HISTORY[n]], [TIMES[n]])


def test_scores_are_logarithms_of_probabilities() -> None:
    made = mixed()
    log, queries = after_last(made.log, np.arange(made.log.n_users), made.model.items)
    np.testing.assert_allclose(made.scorer(log, queries).exp().sum(1), 1.0, rtol=1e-4)


def test_an_exported_mixture_answers_as_the_run_does(tmp_path: Path) -> None:
    made = mixed()
    export(made, tmp_path / "model")
    other = Recommender.load(tmp_path / "model")
    ours, theirs = (one.recommend(history=HISTORY, times=TIMES, k=50) for one in (made, other))
    assert [one.item for one in ours] == [one.item for one in theirs]
    np.testing.assert_allclose([one.score for one in ours], [one.score for one in theirs], rtol=1e-6)


def test_a_trained_mixture_is_loaded_as_it_was_and_its_gates_have_moved(tmp_path: Path) -> None:
    config = replace(tiny.CONFIG, experts=EXPERTS, protocol="global-time")
    made = Recommender.fit(tiny.log(), config, out=tmp_path, progress=False)
    assert made.model.gates is not None
    assert made.model.gates.out.weight.abs().max() > 0
    other = Recommender.load(tmp_path)
    assert made.evaluate()["ndcg@10"] == pytest.approx(other.evaluate()["ndcg@10"])


def test_what_is_left_open_is_set_by_rules_and_what_is_given_stays() -> None:
    divided = split(tiny.log(), "leave-one-out")
    config = replace(FitConfig(protocol="leave-one-out"), dim=24)
    assert "dim" not in config.open
    resolved, chosen = config.resolve(facts_of(divided))
    assert resolved.open == ()
    assert resolved.dim == 24
    assert "repeat" not in (resolved.experts or ())  # the protocol removes what was taken
    assert {one.option for one in chosen} == set(config.open)
    assert all(one.reason for one in chosen)
    assert FitConfig.from_json(resolved.to_json()) == resolved


def test_training_starts_from_what_the_experts_get_and_never_ends_below_it(tmp_path: Path) -> None:
    config = replace(tiny.CONFIG, experts=EXPERTS, protocol="global-time", projection=True)
    made = Recommender.fit(tiny.log(), config, out=tmp_path, progress=False)
    lines = [line for line in read_journal(tmp_path / "log.jsonl") if "valid/ndcg@10" in line]
    assert [line["epoch"] for line in lines] == [0, 1, 2, 3, 4]
    untouched = Recommender._untrained(made.split, config)  # the opening is a function of the seed
    untouched.fit_experts()
    fit_opening(untouched.model, untouched.task())
    assert lines[0]["valid/ndcg@10"] == pytest.approx(untouched.evaluate(valid=True)["ndcg@10"])
    assert made.evaluate(valid=True)["ndcg@10"] == pytest.approx(max(line["valid/ndcg@10"] for line in lines))


def test_a_large_catalogue_draws_its_negatives_by_rule() -> None:
    facts = facts_of(split(tiny.log(), "global-time"))
    few, _ = FitConfig().resolve(facts)
    many, chosen = FitConfig().resolve(replace(facts, items=10**6))
    assert (few.objective.loss, many.objective.loss) == ("softmax", "sampled")
    assert any(one.option == "loss" and "1,000,000 items" in one.reason for one in chosen)


def test_where_the_experts_alone_were_best_refitting_fits_these_and_trains_nothing(tmp_path: Path) -> None:
    config = replace(tiny.CONFIG, experts=EXPERTS, protocol="global-time", projection=True)
    made, _ = Recommender.opening(split(tiny.log(), "global-time"), config)
    made.save(tmp_path / "run")
    checkpoints.save(tmp_path / "run", "best", 0, {"model": made.model.state_dict()}, {"best_epoch": -1})
    whole = refit(tmp_path / "run", tmp_path / "all", progress=False)
    assert whole.split.train.n_events == tiny.log().n_events
    assert whole.model.projection is not None
    assert not whole.model.projection.weight.any()  # the model is silent, as at the start
    assert whole.model.gates is not None
    assert whole.model.gates.out.weight.any()
    again = Recommender.load(tmp_path / "all")
    assert [one.item for one in again.recommend(3)] == [one.item for one in whole.recommend(3)]
