"""A model is trained in several processes, runs where it is told, and is given away: the library alone loads it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")

from prism.errors import InputError
from prism.lm.commands import _generate
from prism.lm.data.tokenizer import train_tokenizer
from prism.lm.files import load_language_model
from prism.lm.hf.model import PrismSequenceConfig, PrismSequenceForCausalLM
from prism.lm.train import save_model
from prism.machine import pick_device

TEXT = "".join(f"A sentence, the {n}th of many. " for n in range(900))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_tokenizer([TEXT], 280)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 2}
    config = PrismSequenceConfig(mixer="prism:steps=1,attention", mixer_fields={"heads": 2}, **sizes)
    path = tmp_path_factory.mktemp("model") / "model"
    save_model(path, PrismSequenceForCausalLM(config), tokenizer)
    return path


def python(script: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_MODULES_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)


def test_a_saved_model_loads_without_importing_prism_first_and_is_saved_again_alike(
    folder: Path, tmp_path: Path
) -> None:
    script = (
        "import sys; from transformers import AutoModelForCausalLM; assert 'prism' not in sys.modules; "
        f"model = AutoModelForCausalLM.from_pretrained({str(folder)!r}, trust_remote_code=True); "
        f"assert type(model).__module__ == 'prism.lm.hf.model'; model.save_pretrained({str(tmp_path / 'again')!r})"
    )
    done = python(script, tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    for name in ("config.json", "modeling_prism_sequence.py", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "again").glob("*.py")) == ["modeling_prism_sequence.py"]


def test_without_prism_the_saved_model_says_what_to_install(folder: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['prism'] = None; from transformers import AutoModelForCausalLM; "
        f"AutoModelForCausalLM.from_pretrained({str(folder)!r}, trust_remote_code=True)"
    )
    done = python(script, tmp_path / "cache")
    assert done.stderr.strip().splitlines()[-1] == (
        "ImportError: this model needs prism: pip install 'prism-sequence[lm]'"
    )


def test_the_prompt_and_its_mask_are_made_where_the_model_is(folder: Path) -> None:
    class Elsewhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(1, device="meta"))

        def generate(self, ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> SimpleNamespace:
            assert ids.device.type == attention_mask.device.type == "meta"
            return SimpleNamespace(sequences=ids, past_key_values=None)

    _, tokenizer = load_language_model(folder, device="cpu")
    for prompt in ("", "A sentence"):
        _generate(Elsewhere(), tokenizer, prompt, {"num_beams": 1})


def test_a_model_is_loaded_to_the_device_that_is_named(folder: Path) -> None:
    model, _ = load_language_model(folder, device="meta")
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    with pytest.raises(InputError, match="device 'gpu' cannot be used"):
        load_language_model(folder, device="gpu")


def test_the_device_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch, "empty", lambda *_, device: asked.append(device))
    for cuda, mps, wanted in ((True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert pick_device().type == wanted


def test_of_several_processes_only_the_first_writes_and_speaks(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    sizes = ["--dim", "16", "--layers", "1", "--heads", "2", "--vocabulary", "280", "--length", "32", "--batch", "2"]
    words = ["--tokens", "512", "--epochs", "1", "--threads", "1", "--device", "cpu"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "prism.cli",
    ]
    line = [*command, "lm", "train", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run"), *sizes, *words]
    done = subprocess.run(line, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("tokens to train on") == done.stdout.count("validation perplexity") == 1
    assert done.stderr.count("training on cpu (1 thread(s)) in 2 processes") == 1
    steps = [json.loads(text)["step"] for text in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    load_language_model(tmp_path / "run" / "model")
    assert not list((tmp_path / "run").glob(".*.part"))


TASK = """
task: own_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{query}}}}"
doc_to_target: gold
doc_to_choice: choices
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def test_the_harness_runs_any_task_and_its_own_command_line_takes_the_folder(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="pip install 'prism-sequence[lm-eval]'")
    rows = [{"query": "A sentence", "choices": [" the", " many"], "gold": n % 2} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "own.yaml").write_text(TASK.format(rows=tmp_path / "rows.jsonl"))
    from prism import cli

    out = tmp_path / "scores.json"
    cli.main(["lm", "evaluate", str(folder), "--tasks", "own_choice", "--include", str(tmp_path), "--out", str(out)])
    assert json.loads(out.read_text())["tasks"]["own_choice"]["acc"] == 0.5
    script = (
        "import sys; from lm_eval.__main__ import cli_evaluate; "
        f"sys.argv = ['lm_eval', '--model', 'hf', '--model_args', 'pretrained={folder},trust_remote_code=True', "
        f"'--tasks', 'own_choice', '--include_path', {str(tmp_path)!r}, '--device', 'cpu']; cli_evaluate()"
    )
    done = python(script, tmp_path / "cache")
    assert "own_choice" in done.stdout, done.stderr[-2000:]
