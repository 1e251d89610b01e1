"""A mixer of one's own, in a module that this package knows nothing of, in every command and in what they save."""

import shutil
from pathlib import Path

import pytest
import torch
from support import tiny

from prism import Recommender, cli
from prism.recommend.config import FitConfig

EXAMPLE = Path(__file__).parents[1] / "examples" / "new_mixer.py"
MIXER = "their_mixers:Retention:longest=64"


@pytest.fixture(autouse=True)
def their_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "path").mkdir()
    shutil.copy(EXAMPLE, tmp_path / "path" / "their_mixers.py")
    monkeypatch.syspath_prepend(tmp_path / "path")


def test_a_recommender_of_it_is_fitted_saved_and_loaded(tmp_path: Path) -> None:
    values = {name: getattr(tiny.CONFIG, name) for name in ("dim", "protocol", "batching", "train")}
    config = FitConfig(layers=2, mixer=f"{MIXER},prism:steps=1", **values)
    made = Recommender.fit(tiny.log(), config, out=tmp_path / "run", progress=False)
    blocks = [type(block.mixer).__name__ for block in made.model.backbone.blocks]
    assert blocks == ["Retention", "Prism"]
    assert made.model.backbone.blocks[0].mixer.config.longest == 64
    again = Recommender.load(tmp_path / "run")
    assert again.config == made.config
    assert again.config.mixer == config.mixer
    assert all(torch.equal(a, b) for a, b in zip(made.model.parameters(), again.model.parameters(), strict=True))


def test_it_is_probed_by_its_place(tmp_path: Path) -> None:
    sizes = ["--steps", "2", "--every", "1", "--tested", "16", "--watched", "16", "--length", "16", "--dim", "8"]
    cli.main(["probe", "mux", "--mixers", MIXER, "--processes", "1", "--out", str(tmp_path), *sizes])
    assert "their_mixers:Retention" in (tmp_path / "table.txt").read_text()


def test_a_language_model_of_it_is_trained_and_loaded(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")
    from prism.lm.files import load_language_model

    (tmp_path / "text.txt").write_text("".join(f"A sentence, the {n}th of many. " for n in range(900)))
    sizes = ["--dim", "16", "--layers", "2", "--heads", "2", "--vocabulary", "280", "--length", "32", "--batch", "4"]
    words = ["--tokens", "256", "--epochs", "1", "--mixer", f"{MIXER},attention", "--out", str(tmp_path / "run")]
    cli.main(["lm", "train", str(tmp_path / "text.txt"), *sizes, *words])
    model, _ = load_language_model(tmp_path / "run" / "model")
    assert [type(block.mixer).__name__ for block in model.model.backbone.blocks] == ["Retention", "Attention"]
