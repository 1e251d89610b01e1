"""Algorithm 1 to the letter beside the layer's own choices: the table's rows, its columns, runs that diverge."""

import json
from math import isfinite
from pathlib import Path

import pytest

from prism.errors import DivergedError, InputError
from prism.layers.prism import PrismConfig
from prism.layers.prism.fields import LITERAL, OF_THE_EQUATION
from prism.layers.spelling import spelled_mixer
from prism.paper import capacity, literal
from prism.paper.literal import ROWS, state_sizes


def test_every_unprinted_choice_is_a_row_of_its_own() -> None:
    default = PrismConfig()
    turned = {
        tuple(name for name in OF_THE_EQUATION if getattr(spelled_mixer(row), name) != getattr(default, name))
        for row in ROWS.values()
    }
    assert {(name,) for name in OF_THE_EQUATION if name not in ("decay", "strength_bias")} <= turned
    assert all(getattr(spelled_mixer(ROWS["literal"]), name) == value for name, value in LITERAL.items())


def test_with_gates_and_unit_keys_the_state_stays_bounded_and_with_neither_it_does_not() -> None:
    lengths = (64, 1024)
    kept = state_sizes("prism", lengths, seeds=1)
    assert kept[1] < 3 * kept[0]
    lost = state_sizes("prism:strength=linear,unit_keys=false", lengths, seeds=1)
    assert not isfinite(lost[1]) or lost[1] > 1e6 * kept[1]


def test_the_command_keeps_its_runs_and_tells_which_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = capacity.run_probe

    def diverges(probe, model, training, *, seed):
        if not model.mixer.unit_keys:
            raise DivergedError("the loss is nan by step 1")
        return run(probe, model, training, seed=seed)

    monkeypatch.setattr(capacity, "run_probe", diverges)
    monkeypatch.setattr(literal, "LENGTHS", (8, 16))
    literal.literal(rows=("default", "literal"), updates=2, dim=8, processes=1, out=tmp_path)
    record = json.loads((tmp_path / "literal.json").read_text())
    first, second = record["rows"]
    assert first["row"] == "default"
    assert len(first["mqar"]) == 1
    assert first["mqar"][0] > 0
    assert (second["mqar"], second["ml1m"], second["language"]) == ([0.0], [], [])
    assert "diverged" in capsys.readouterr().out
    with pytest.raises(InputError, match="rows must be one of"):
        literal.literal(rows=("litteral",), out=tmp_path)
