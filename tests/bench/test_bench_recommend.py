"""What a recommender costs, printed for a log of any size."""

import pytest

from prism.bench.recommend import recommend


def test_training_ranking_and_live_users_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    recommend(users=80, items=50, events=2000, dim=16, steps=1, queries=20, lengths=(10, 50), loss="sampled")
    shown = capsys.readouterr().out
    for what in (
        "tokens/s",
        "beyond encoding",
        "after 10 events",
        "after 50 events",
        "sampled loss / exact",
        "all threads / one",
        "peak memory",
    ):
        assert what in shown
