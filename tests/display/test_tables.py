"""Tables: what users gave stands there as text, wherever a table is made."""

import re
from pathlib import Path

import pytest

import prism
from prism.bench.measure import Measurement
from prism.bench.report import Claim, show_claims, show_measurements
from prism.display.tables import as_text, show, show_all, table

NAME = "Mug [red] [/blue] [link=x]y\x1b[31m\x07\nend\u202e"
SHOWN = r"Mug [red] [/blue] [link=x]y\x1b[31m\x07\nend\u202e"


def test_brackets_are_text_and_control_characters_are_visible(capsys: pytest.CaptureFixture[str]) -> None:
    show(NAME, [NAME, "value"], [[NAME, "1"]], caption="as given")
    shown = capsys.readouterr().out
    assert shown.count(SHOWN) == 3
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", shown)


def test_text_beside_a_table_is_text_too(capsys: pytest.CaptureFixture[str]) -> None:
    show_all("[bold]a\x1b[1m\nb[/bold]", table(["x"], [["1"]]))
    assert capsys.readouterr().out.startswith("[bold]a\\x1b[1m\nb[/bold]\n")


def test_a_cell_of_several_lines_has_several_lines() -> None:
    lines = as_text(table(["system", "speed"], [["a\nb", ("1 k/s", "2 MiB")]])).splitlines()
    assert "a\\nb" in lines[3]
    assert "1 k/s" in lines[3]
    assert "2 MiB" in lines[4]


def test_benchmarks_print_the_names_of_mixers_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    row = Measurement(system=NAME, work="forward", tokens=8, seconds=2.0, fastest=2.0, repeats=1, size={"T": 8})
    show_measurements([row], "title")
    show_claims([Claim(text=NAME, measured=2.0, least=1.0)])
    shown = capsys.readouterr().out
    assert shown.count(SHOWN) == 2
    assert "\x1b" not in shown


def test_only_one_module_makes_tables() -> None:
    """So that none is made past it: of what draws on a terminal, the training bar alone stands elsewhere."""
    root = Path(prism.__file__).parent
    found = {str(file.relative_to(root)) for file in root.rglob("*.py") if "from rich" in file.read_text()}
    assert found == {"display/tables.py", "train/progress.py"}
