"""`prism lm train`: text in, a model folder out; again, it goes on; a mistake is one line."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")

from prism import cli
from prism.errors import InputError
from prism.files import only_one
from prism.layers.prism import PrismConfig
from prism.lm.data.tokenizer import load_tokenizer, train_tokenizer
from prism.lm.files import load_language_model
from prism.lm.train import keep_tokenizer, split_documents

SIZES = {"dim": 16, "layers": 1, "heads": 2, "vocabulary": 280, "length": 32, "batch": 4, "tokens": 1024, "epochs": 2}
SMALL = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"A sentence, the {n}th of many. " for n in range(1500)))
    return path


def train(text: Path, out: Path, *words: str) -> None:
    cli.main(["lm", "train", str(text), "--out", str(out), *SMALL, *words])


def test_training_leaves_a_model_folder_and_goes_on_where_it_stopped(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(text, tmp_path / "run", "--mixer", "prism:steps=3,keys=shared")
    model, tokenizer = load_language_model(tmp_path / "run" / "model")
    assert model.config.mixers == (PrismConfig(heads=2, steps=3, keys="shared"),)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    written = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    capsys.readouterr()
    train(text, tmp_path / "run", "--mixer", "prism:steps=3,keys=shared")
    assert "epoch" not in capsys.readouterr().out  # nothing was left to do
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == written
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert {"valid/perplexity", "valid/bits_per_byte"} <= set(log[-1])


def test_separate_documents_are_trained_and_validated_apart(text: Path, tmp_path: Path) -> None:
    pages = tmp_path / "pages.txt"
    pages.write_text(text.read_text()[:9000].replace(". ", ".\f"))
    perplexity = {}
    for words in ((), ("--separate",)):
        train(pages, tmp_path / f"run{len(words)}", *words)
        log = (tmp_path / f"run{len(words)}" / "log.jsonl").read_text().splitlines()
        perplexity[words] = json.loads(log[-1])["valid/perplexity"]
    # the number of a sentence follows from the one before, which only shared states have seen
    assert perplexity[()] != perplexity[("--separate",)]


def test_text_that_holds_nothing_leaves_no_folder_behind(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(SystemExit) as stop:
        train(tmp_path / "empty.txt", tmp_path / "run")
    assert stop.value.code == 2
    assert not (tmp_path / "run").exists()


def test_mistakes_are_one_line_and_exit_code_2(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        with pytest.raises(SystemExit) as stop:
            train(text, tmp_path / "run", *words)
        assert stop.value.code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        return lines[0]

    assert "no field 'stepz': did you mean 'steps'" in refused("--mixer", "prism:stepz=3")
    assert not (tmp_path / "run").exists()  # nothing half-written
    train(text, tmp_path / "run")
    capsys.readouterr()
    assert "holds another run: mixer is 'prism' there" in refused("--mixer", "gated-deltanet")
    with only_one(tmp_path / "run"):
        assert "is in use by another process" in refused()
    with pytest.raises(SystemExit):
        cli.main(["lm", "train", str(tmp_path / "none.txt"), "--out", str(tmp_path / "other")])
    assert "none.txt does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["lm", "train", str(text), "--out", str(tmp_path / "third"), "--tokenizer", str(tmp_path)])
    assert "holds no tokenizer that can be read" in capsys.readouterr().err


def test_a_run_goes_on_with_its_own_tokenizer_and_no_other(tmp_path: Path) -> None:
    kept = tmp_path / "run" / "tokenizer"
    own, other = train_tokenizer(["its own words"], 300), train_tokenizer(["and quite other ones"], 300)
    own.save_pretrained(kept)
    for given in (None, own, load_tokenizer(kept), load_tokenizer(kept / "tokenizer.json")):
        assert keep_tokenizer(kept, given, lambda: iter(()), 300).get_vocab() == own.get_vocab()
    with pytest.raises(InputError, match="run has another tokenizer: leave --tokenizer out, or choose another --out"):
        keep_tokenizer(kept, other, lambda: iter(()), 300)


def test_a_run_is_not_written_into_a_folder_of_its_text(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "text.txt").write_text(text.read_text())
    monkeypatch.chdir(texts)
    for folder, out, more in (
        (texts, Path("run"), ()),
        (Path(), texts / "deep" / "run", ()),
        (Path(), Path(), ()),
        (texts / "text.txt", Path("run"), ("--valid", str(texts))),
    ):
        with pytest.raises(SystemExit) as stop:
            train(folder, out, *more)
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.endswith("whose files are read as text: choose an --out outside of it")
    assert [path.name for path in texts.iterdir()] == ["text.txt"]
    train(texts / "text.txt", Path("run"))  # a file is no folder: nothing of the run is read as text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dim", "10", "--heads", "4"), "dim 10 does not divide by heads 4"),
        (("--vocabulary", "3"), "vocabulary must be at least 257, got 3"),
        (("--length", "100000"), "less than one window of length 100000"),
        (("--seed", str(2**64)), "seed must be in [0, 2**63), got 18446744073709551616"),
        (("--tokens", "10"), "tokens must be at least 256"),
    ],
)
def test_what_cannot_be_trained_does_not_take_its_folder(
    words: tuple[str, ...], message: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        train(text, tmp_path / "run", *words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.json").exists()  # other settings may have the folder


def test_validation_takes_every_twentieth_document_or_the_end_of_each() -> None:
    many = [f"document {n}" for n in range(45)]
    parts = split_documents(lambda: many)
    assert list(parts["valid"]()) == ["document 19", "document 39"]
    assert sorted([*parts["train"](), *parts["valid"]()]) == sorted(many)
    (one,) = ["word " * 100]
    parts = split_documents(lambda: [one])
    (train_part,), (valid_part,) = parts["train"](), parts["valid"]()
    assert train_part + valid_part == one
    assert 0 < len(valid_part) < len(one) / 10


@pytest.mark.parametrize("beginning", ["", "A title in words\n"])
@pytest.mark.parametrize("letters", ["文字没有空格", "ACGT"])
def test_validation_takes_the_end_of_text_without_spaces_too(letters: str, beginning: str) -> None:
    one = beginning + letters * 1000
    parts = split_documents(lambda: [one])
    (train_part,), (valid_part,) = parts["train"](), parts["valid"]()
    assert train_part + valid_part == one
    assert len(valid_part) == len(one) // 20


def test_text_in_lines_is_cut_between_two_of_them() -> None:
    (one,) = ["ACGTACGT\n" * 500]
    parts = split_documents(lambda: [one])
    (train_part,), (valid_part,) = parts["train"](), parts["valid"]()
    assert train_part + valid_part == one
    assert train_part.endswith("\n")
    assert 0 < len(valid_part) < len(one) / 10


@pytest.mark.slow
def test_training_without_text_learns_pythons_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    words = ["--dim", "64", "--layers", "2", "--vocabulary", "1000", "--tokens", "400000", "--epochs", "4"]
    cli.main(["lm", "train", "--out", str(tmp_path / "run"), *words])
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    bits = [line["valid/bits_per_byte"] for line in log if "valid/bits_per_byte" in line]
    assert bits[-1] < 3.0 < bits[0]
