"""docs/language.md: its commands and its Python run as they stand, in its order, in an empty folder."""

from pathlib import Path

import pytest
from support.pages import run_page

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_every_command_and_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("language.md", other=lambda block: pytest.fail(f"neither Python nor commands: {block}"))
    shown = capsys.readouterr().out
    assert "bits per byte" in shown
    assert "minus full" in shown
    assert (tmp_path / "runs" / "study" / "language-ablation.png").is_file()
    assert (tmp_path / "runs" / "hybrid" / "model.safetensors").is_file()
