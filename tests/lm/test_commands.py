"""`prism lm`: numbers and text come out; what cannot be used is one line and exit code 2."""

import json
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")

from prism import cli
from prism.errors import InputError
from prism.files import write_whole
from prism.lm.data.tokenizer import train_tokenizer
from prism.lm.hf.model import PrismSequenceConfig, PrismSequenceForCausalLM

TEXT = "A text to learn the words of, and to be evaluated on afterwards. " * 8


def save(folder: Path, mixer: str = "prism", vocabulary: int = 270) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "mixer_fields": {"heads": 2}}
    config = PrismSequenceConfig(vocab_size=vocabulary, mixer=mixer, eos_token_id=0, **sizes)
    PrismSequenceForCausalLM(config).save_pretrained(folder)
    train_tokenizer([TEXT], vocabulary=270).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "model")


def test_evaluate_prints_and_writes_perplexity(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    out = tmp_path / "numbers.json"
    words = ["--text", str(tmp_path / "text.txt"), "--context", "32", "--stride", "16", "--out", str(out)]
    cli.main(["lm", "evaluate", str(model), *words])
    found = json.loads(out.read_text())["text"]
    assert (
        f"perplexity {found['perplexity']:.3f} per token, {found['bits_per_byte']:.4f} bits" in capsys.readouterr().out
    )
    assert found["bytes"] == len(TEXT)


@pytest.mark.filterwarnings("ignore")  # the harness's own
def test_evaluate_prints_the_papers_table(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lm_eval", reason="pip install 'prism-sequence[lm-eval]'")
    (tmp_path / "piqa.jsonl").write_text(json.dumps({"query": "Question: a", "choices": ["b", "c"], "gold": 0}))
    cli.main(["lm", "evaluate", str(model), "--data-dir", str(tmp_path)])
    text = capsys.readouterr().out
    assert "LMB PPL" in text
    assert "paper: gated-deltanet" in text
    assert "mean of the 1 accuracies" in text


def test_generate_streams_text_with_its_speed_and_state(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for _ in range(2):
        cli.main(["lm", "generate", str(model), "A text", "--tokens", "8"])
        found.append(capsys.readouterr())
    assert found[0].out.startswith("A text")
    assert found[0].out == found[1].out  # the seed decides
    assert "8 tokens" in found[0].err
    assert "tokens/s, state 1.5 KiB per sequence, constant" in found[0].err
    cli.main(["lm", "generate", str(model), "A text", "--tokens", "3", "--beams", "2"])
    shown = capsys.readouterr()
    assert shown.out.startswith("A text")  # a beam may end early: how many tokens it has is the model's to say
    assert "tokens/s" in shown.err


def test_generating_takes_the_compiled_step_for_every_token_after_the_prompt(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from prism.models.one_token import OneToken

    steps, step = [], OneToken.step
    monkeypatch.setattr(OneToken, "step", lambda self, x, state: steps.append(len(x)) or step(self, x, state))
    cli.main(["lm", "generate", str(model), "A text", "--tokens", "8", "--temperature", "0"])
    made = int(capsys.readouterr().err.split(" tokens")[0].split()[-1])
    assert steps == [1] * (made - 1)  # the first comes with the prompt


def test_generate_says_that_the_cache_of_attention_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["lm", "generate", str(save(tmp_path, "attention")), "A", "--tokens", "3", "--temperature", "0"])
    assert "growing with every token" in capsys.readouterr().err


def test_the_coldest_temperature_takes_the_likeliest_token(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for temperature in ("1e-6", "0"):
        words = ["--tokens", "8", "--temperature", temperature, "--seed", str(2**63 - 1)]
        cli.main(["lm", "generate", str(model), "A text", *words])
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(["lm", *words])
    assert stop.value.code == 2
    text = capsys.readouterr().err.strip()
    assert "\n" not in text
    return text


def test_bad_input_is_one_line_and_exit_code_2(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"empty.txt": b"", "binary.txt": b"a\0b"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    text = ["--text", str(tmp_path / "empty.txt")]
    assert "has no text" in refused(capsys, "evaluate", str(model), *text)
    assert "is a binary file" in refused(capsys, "evaluate", str(model), "--text", str(tmp_path / "binary.txt"))
    assert "has no config.json" in refused(capsys, "generate", str(tmp_path))
    assert "is not a folder" in refused(capsys, "generate", str(tmp_path / "none"))
    assert "nothing to evaluate" in refused(capsys, "evaluate", str(model))
    assert "did you mean 'piqa'" in refused(
        capsys, "evaluate", str(model), "--tasks", "piqaa", "--data-dir", str(model)
    )
    assert "top_p must be in (0, 1]" in refused(capsys, "generate", str(model), "--top-p", "2")
    assert "tokens must be at least 1" in refused(capsys, "generate", str(model), "--tokens", "0")
    assert "seed must be in [0, 2**63)" in refused(capsys, "generate", str(model), "--seed", str(2**64))
    cold = refused(capsys, "generate", str(model), "--temperature", "1e-40")
    assert "temperature must be at least 1e-06, or 0 for the likeliest token, got 1e-40" in cold


def test_a_folder_is_no_file_for_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for out in (".", str(tmp_path)):  # refused before the model is loaded
        words = ["evaluate", str(tmp_path / "none"), "--text", str(tmp_path), "--out", out]
        assert f"{out} is a folder: name a file to write" in refused(capsys, *words)
    with pytest.raises(InputError, match="is a folder: name a file to write"):
        write_whole(Path(), b"")


@pytest.mark.parametrize("words", [("--batch", "0"), ("--batch", "-3"), ("--limit", "0")])
def test_counts_below_one_are_refused_before_the_model_is_loaded(
    words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = refused(capsys, "evaluate", str(tmp_path / "none"), "--text", str(tmp_path), *words)
    assert f"{words[0].strip('-')} must be at least 1, got {words[1]}" in text


def test_the_prompt_is_read_from_the_standard_input_and_refused_unless_it_is_text(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO("A text, é".encode())))
    cli.main(["lm", "generate", str(model), "-", "--tokens", "3"])
    assert capsys.readouterr().out.startswith("A text, é")
    # as Python opens it where the locale is not UTF-8's
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"caf\xe9"), encoding="utf-8", errors="surrogateescape"))
    assert "standard input is not UTF-8 text (byte 3)" in refused(capsys, "generate", str(model), "-")
    assert "prompt is not UTF-8 text (byte 3)" in refused(capsys, "generate", str(model), "caf\udce9")


def test_damaged_models_and_missing_tokenizers_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = save(tmp_path / "wrong", vocabulary=100)
    assert "270 tokens but the model's vocabulary is 100" in refused(capsys, "generate", str(wrong))
    for path in wrong.glob("tokenizer*"):
        path.unlink()
    assert "name one with --tokenizer" in refused(capsys, "generate", str(wrong))
    assert "does not exist" in refused(capsys, "generate", str(wrong), "--tokenizer", str(tmp_path / "none"))
    (wrong / "model.safetensors").write_bytes(b"damaged")
    assert "holds no model that can be loaded" in refused(capsys, "generate", str(wrong))
    (wrong / "model.safetensors").unlink()
    assert "holds no model that can be loaded" in refused(capsys, "generate", str(wrong))
    (wrong / "config.json").write_text('{"model_type": "prism-sequence", "mixer": "prizm"}')
    assert "did you mean 'prism'" in refused(capsys, "generate", str(wrong))
