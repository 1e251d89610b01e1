"""The ML-1M recipe: the setting that was promised, beside the published rows."""

from functools import partial
from pathlib import Path

import pytest

from prism import cli
from prism.paper import ml1m
from prism.paper.ml1m import COLUMNS, published, recipe
from prism.recommend.config import FitConfig
from prism.recommend.data.known import load
from prism.recommend.data.reading import Reading
from prism.recommend.data.splits import split
from prism.recommend.evaluation.ranking import evaluate
from prism.recommend.recommender import Recommender

DATA = Path(__file__).parents[3] / "shared" / "data" / "ml-1m"


def test_the_recipe_differs_from_the_defaults_in_what_validation_chose() -> None:
    differences = recipe().differences(FitConfig())
    model = ["dim", "layers", "dropout", "time_gaps", "query_time", "projection", "start", "experts"]
    model += ["rehearsal", "protocol"]
    schedule = ["batch", "length", "windows", "epochs", "lr", "patience", "evaluate_every"]
    assert [line.split()[0] for line in differences] == model + schedule


def test_the_command_that_the_recipe_tells_is_the_recipe() -> None:
    words = (ml1m.__doc__ or "").partition("prism fit ")[2].split()
    command = cli._parsed(cli.COMMANDS["fit"], words, "prism fit")
    assert isinstance(command, partial)
    assert command.keywords["config"] == recipe()


def test_published_rows_have_the_tables_columns() -> None:
    for row in published():
        assert tuple(row.runs[0]) == COLUMNS
        assert row.mean("hit@10") < row.mean("hit@50") < row.mean("hit@200")


@pytest.mark.skipif(not DATA.exists(), reason=f"ML-1M is not at {DATA}")
def test_all_users_of_ml1m_are_ranked_among_all_films_in_under_ten_seconds() -> None:
    import time

    import torch

    divided = split(load("ml-1m", Reading(folder=DATA.parent)), "leave-one-out")
    made = Recommender._untrained(divided, recipe())
    assert (divided.train.n_users, divided.train.n_items, len(divided.test)) == (6040, 3706, 6040)
    start = time.process_time()
    with torch.inference_mode():
        evaluate(
            lambda log, part: made.model.scores(torch.randn(len(part), made.config.dim)), divided.log, divided.test
        )
    assert time.process_time() - start < 10
