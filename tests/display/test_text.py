"""Tables and lines print what users gave as text: no markup, no control sequences."""

import pytest

from prism.display.tables import show
from prism.display.text import plain, plain_lines


def test_control_characters_are_shown_and_all_else_stays() -> None:
    assert plain("a\x1b[31mred\x07\x9b\n\u2028\u202e\x7f") == r"a\x1b[31mred\x07\x9b\n\u2028\u202e\x7f"
    assert plain("Müsli – 麦 👩\u200d🍳 [red]") == "Müsli – 麦 👩\u200d🍳 [red]"
    assert plain_lines("one\ntwo\r") == "one\ntwo\\r"
    assert plain("\ud800") == r"\ud800"


def test_names_with_square_brackets_and_escapes_are_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["Mug [red] 41", "Mug [/blue] 2", "[link=http://x]y[/link]", "\x1b]0;title\x07"]
    show("runs [bold]", ["item [red]", "n"], [[name, "1"] for name in names], caption="of [i]log\x1b[0m")
    shown = capsys.readouterr().out
    for text in ("runs [bold]", "item [red]", *names[:3], r"\x1b]0;title\x07", r"of [i]log\x1b[0m"):
        assert text in shown
    assert "\x1b" not in shown
