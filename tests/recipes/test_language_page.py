"""docs/language.md: its commands and its Python run as they stand, in its order, in an empty folder."""

import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")

from prism import cli

PAGE = (Path(__file__).parents[2] / "docs" / "language.md").read_text()


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_every_command_and_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for language, block in re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL):
        if language == "python":
            exec(compile(block, "language.md", "exec"), names)
            continue
        assert language == "sh"
        for line in block.splitlines():
            program, *words = shlex.split(line)
            assert program == "prism"
            cli.main(words)
    shown = capsys.readouterr().out
    assert "bits per byte" in shown
    assert "minus full" in shown
    assert (tmp_path / "runs" / "study" / "language-ablation.png").is_file()
    assert (tmp_path / "runs" / "hybrid" / "model.safetensors").is_file()
