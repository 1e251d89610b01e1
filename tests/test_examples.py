"""The examples run as they stand, and come to what they promise."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_new_mixer_is_the_same_at_both_paces_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "new_mixer.py"), run_name="__main__")
    paces, learnt = capsys.readouterr().out.splitlines()
    assert float(paces.rpartition(" ")[2]) < 1e-5
    assert float(learnt.partition("accuracy ")[2].partition(",")[0]) > 0.3  # chance: 1 in 16


def test_packed_sequences_teach_what_a_stream_asks(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "packed_sequences.py"), run_name="__main__")
    last = capsys.readouterr().out.splitlines()[-1]
    assert float(last.partition(": ")[2].partition("%")[0]) > 99
