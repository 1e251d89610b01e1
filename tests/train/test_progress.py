"""What is seen of training where there is no terminal: a line now and then, not only at the end of an epoch."""

import pytest

from prism.train import progress


@pytest.mark.parametrize(
    ("seconds", "shown", "expected"),
    [(0.0, True, 3), (1e9, True, 0), (0.0, False, 0)],
    ids=["due at once", "never due", "not shown"],
)
def test_a_file_gets_lines_inside_an_epoch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds: float, shown: bool, expected: int
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
    with progress.Display(shown=shown, epochs=2) as display:
        for done in (0.25, 0.5, 1.25):
            display.step(done, int(done), 3.5, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == expected
    if expected:
        assert lines[1].startswith("epoch 1/2, 50% of it: loss 3.5000, ")
        assert lines[2].startswith("epoch 2/2, 25% of it: ")
