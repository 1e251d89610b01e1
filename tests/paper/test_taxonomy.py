"""The taxonomy: what is measured agrees with what the mixers are."""

import json
from pathlib import Path

import pytest

from prism.layers import MIXERS, mixer_config
from prism.paper.taxonomy import row, taxonomy


@pytest.mark.parametrize(
    ("name", "fields", "rank", "affine"),
    [
        ("linear-attention", {}, 1, True),
        ("mamba2", {}, 1, True),
        ("gated-deltanet", {}, 1, True),
        ("pgdn", {}, 1, True),
        ("gla", {}, 1, True),
        ("prism", {"steps": 1}, 1, True),
        ("prism", {"steps": 3}, 3, True),
        ("prism", {"steps": 3, "keys": "shared"}, 1, True),
        ("ttt-linear", {"mini_batch": 1}, 1, False),
        ("titans", {"chunk": 1}, 1, False),
        ("titans", {"chunk": 1, "memory": "linear"}, 1, True),
        ("attention", {}, None, None),
    ],
)
def test_rank_and_parallel_form_are_as_the_equations_say(
    name: str, fields: dict[str, object], rank: int | None, affine: bool | None
) -> None:
    measured = row(name, mixer_config(name, heads=2, **fields))
    assert measured.rank == rank
    assert measured.affine is affine


def test_the_table_has_every_mixer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taxonomy(tmp_path / "t.json")
    names = {record["name"].partition(",")[0] for record in json.loads((tmp_path / "t.json").read_text())}
    assert names == set(MIXERS)
    assert "prism, L=4" in capsys.readouterr().out
