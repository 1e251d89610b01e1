"""The benchmark of a divided table trains, and says what a step took."""

import pytest

from prism.bench.sharded import Case, measure


@pytest.mark.slow
def test_a_step_is_timed_and_the_loss_is_that_of_random_events() -> None:
    found = measure(Case(items=1000, processes=2, dim=8, windows=2, length=10, negatives=32, steps=2))
    assert 0 < found.seconds < 60
    assert found.bytes > 1e8
    assert 4 < found.loss < 10  # about ln 1000
