"""Before training, two ways to learn are tried on validation: the one that is ahead is taken, and told."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from prism.errors import InputError
from prism.files import only_one
from prism.recommend.config import FitConfig
from prism.recommend.data.log import Log
from prism.recommend.data.splits import split as divide
from prism.recommend.data.synthetic import kinds_log
from prism.recommend.recommender import Recommender
from prism.recommend.runs.storage import read_config
from prism.recommend.training import rehearsal
from prism.recommend.training.task import RecommendationTask
from prism.train.config import TrainConfig
from prism.train.position import Position

CAREFUL, BOLD = (1e-3, 0.5), (3e-3, 0.0)
SMALL = FitConfig(dim=8, minutes=100.0, opening=0.5, train=TrainConfig(epochs=1, lr=0.0))


@pytest.fixture(scope="module")
def log() -> Log:
    return kinds_log(users=40, items=60, events=2000, kinds=4)


def scored(monkeypatch: pytest.MonkeyPatch, scores: dict[tuple[float, float], float]) -> list[TrainConfig]:
    """A training that ruins the weights and gives each way its score; the rehearsals that there were."""
    found: list[TrainConfig] = []

    def train(model: nn.Module, task: RecommendationTask, config: TrainConfig, **given: Any) -> Position:
        for weight in model.parameters():
            weight.data.fill_(7.0)
        found.append(config)
        assert task.objective.focus is not None
        return Position(best=scores[config.lr, task.objective.focus])

    monkeypatch.setattr(rehearsal, "train", train)
    return found


@pytest.mark.parametrize(("bold", "chosen"), [(0.3, BOLD), (0.201, CAREFUL), (0.1, CAREFUL)])
def test_what_is_clearly_ahead_on_validation_is_taken_and_told_and_a_run_that_goes_on_keeps_it(
    log: Log,
    bold: float,
    chosen: tuple[float, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rehearsals = scored(monkeypatch, {CAREFUL: 0.2, BOLD: bold})
    made = Recommender.fit(log, SMALL, out=tmp_path / "run", device="cpu")
    assert (made.config.train.lr, made.config.objective.focus) == chosen
    assert made.config == read_config(tmp_path / "run")
    assert len(rehearsals) == 2
    lr, focus = chosen
    mine, other = (bold, 0.2) if chosen == BOLD else (0.2, bold)
    wanted = f"lr {lr:g}, focus {focus:g}: ndcg@10 {mine:.4f} in rehearsal, {other:.4f} the other way"
    assert wanted in capsys.readouterr().out
    again = Recommender.fit(log, SMALL, out=tmp_path / "run", progress=False, device="cpu")
    assert again.config == made.config
    assert len(rehearsals) == 2


@pytest.mark.parametrize("taken", ["file", "run"])
def test_a_folder_that_cannot_be_had_is_refused_before_anything_is_computed(
    log: Log, taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recommender, "opening", pytest.fail)
    out = tmp_path / "out"
    if taken == "file":
        out.write_text("mine")
        with pytest.raises(InputError, match="is a file"):
            Recommender.fit(log, SMALL, out=out, progress=False, device="cpu")
    else:
        with only_one(out), pytest.raises(InputError, match="in use by another process"):
            Recommender.fit(log, SMALL, out=out, progress=False, device="cpu")


def test_a_fit_that_is_refused_leaves_no_folder(log: Log, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column 'colour' of items"):
        Recommender.fit(log, SMALL.with_options({"features": ("colour",)}), out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", [{"lr": 2e-3}, {"focus": 0.25}, {"rehearsal": False}, {"experts": ()}])
def test_what_is_given_is_not_rehearsed(log: Log, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsals = scored(monkeypatch, {})
    Recommender.fit(log, SMALL.with_options(given), progress=False, device="cpu")
    assert not rehearsals


def test_a_rehearsal_leaves_the_model_as_it_was_and_takes_no_more_than_its_time(
    log: Log, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = SMALL.with_options({"epochs": 9, "minutes": 10.0})
    made, task = Recommender.opening(divide(log, "global-time"), config)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    rehearsals = scored(monkeypatch, {CAREFUL: 0.1, BOLD: 0.2})

    def rehearsed(each: float) -> tuple[FitConfig, list[int]]:
        rehearsals.clear()
        found = rehearsal.rehearsed(made.model, task, made.config, each=each, progress=True, device=torch.device("cpu"))
        for name, value in made.model.state_dict().items():
            torch.testing.assert_close(value, before[name], rtol=0, atol=0)
        return found, [one.epochs for one in rehearsals]

    assert rehearsed(1.0)[1] == [rehearsal.MOST] * 2
    assert rehearsed(0.4 * 600 / 4)[1] == [2, 2]
    capsys.readouterr()
    assert rehearsed(61.0) == (made.config, [])
    assert "no rehearsal: an epoch takes about 61 s, and 10 minutes are given" in capsys.readouterr().out


def test_the_ways_are_those_of_the_training_that_follows(log: Log) -> None:
    """What a rehearsal finds is what a fit with that lr and focus finds."""
    config = SMALL.with_options({"epochs": 2})
    made, task = Recommender.opening(divide(log, "global-time"), config)
    chosen = rehearsal.rehearsed(made.model, task, made.config, each=0.01, progress=False, device=torch.device("cpu"))
    found = {}
    for lr, focus in (CAREFUL, BOLD):
        given = config.with_options({"lr": lr, "focus": focus})
        other = Recommender.fit(log, given, progress=False, device="cpu")
        found[lr, focus] = other.evaluate(valid=True)["ndcg@10"]
    wanted = BOLD if found[BOLD] > rehearsal.LEAD * found[CAREFUL] else CAREFUL
    assert (chosen.train.lr, chosen.objective.focus) == wanted
