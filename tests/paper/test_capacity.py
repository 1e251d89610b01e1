"""The capacity picture: one run per point, kept, and not run twice."""

import json
from pathlib import Path

import pytest

from prism.errors import InputError
from prism.paper import capacity as command

SMALL = {"mixers": ("prism", "linear-attention"), "dims": (8, 16), "pairs": (1, 2), "length": 8, "processes": 1}


def test_every_point_is_kept_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command.capacity(**SMALL, steps=2, out=tmp_path)
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert len(records) == 8
    assert (tmp_path / "capacity.png").read_bytes().startswith(b"\x89PNG")
    sizes = {(r["mixer"], r["dim"]): r["state"] for r in records}
    # two layers of two heads: S of 4 × 4 and the anchor's four tokens of width 8
    assert sizes["prism", 8] == 2 * (2 * 4 * 4 + 4 * 8)
    assert sizes["linear-attention", 16] == 2 * 2 * 8 * (8 + 1)
    monkeypatch.setattr(command, "run_probe", None)
    command.capacity(**SMALL, steps=2, out=tmp_path)
    with pytest.raises(InputError, match="steps is 2 there and 3 here; choose another --out"):
        command.capacity(**SMALL, steps=3, out=tmp_path)


@pytest.mark.parametrize("field", ["dims", "pairs"])
def test_a_model_or_task_of_no_size_is_refused(field: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{field} must be at least 1, got 0"):
        command.capacity(**{field: (4, 0)}, out=tmp_path)


def test_more_pairs_than_keys_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pairs must be at most 16"):
        command.capacity(pairs=(2, 17), out=tmp_path)
    assert not list(tmp_path.iterdir())
