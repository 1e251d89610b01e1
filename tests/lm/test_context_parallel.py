"""`prism lm train` on two processes, which share sequences or weights, trains as one process does."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from support.processes import run_ranks

from prism.errors import InputError
from prism.lm.hf.model import PrismSequenceForCausalLM
from prism.lm.train import LanguageConfig
from prism.lm.train import train as train_lm
from prism.train import checkpoints
from prism.train.config import TrainConfig
from prism.train.journal import read_journal

CONFIG = LanguageConfig(
    mixer="gated-deltanet", dim=16, layers=2, heads=2, vocabulary=300, length=32, batch=2, tokens=1024,
    train=TrainConfig(epochs=2, lr=4e-3, log_steps=1),
)  # fmt: skip


def both(rank: int, text: Path, out: Path, separate: bool) -> None:
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    config = replace(CONFIG, context_parallel=2, separate=separate)
    train_lm((text,), out=out, config=config, device="cpu", threads=1)


@pytest.mark.parametrize("separate", [False, True])
def test_two_processes_that_share_sequences_train_as_one_does(tmp_path: Path, separate: bool) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the {n}th line says {n * n} and then {n + 7}" for n in range(300)))
    torch.manual_seed(0)
    train_lm((text,), out=tmp_path / "one", config=replace(CONFIG, separate=separate), device="cpu", threads=1)
    run_ranks(2, both, text, tmp_path / "two", separate)
    lines = [
        [line["loss"] for line in read_journal(tmp_path / name / "log.jsonl") if "loss" in line]
        for name in ("one", "two")
    ]
    assert len(lines[0]) == 16
    assert lines[1] == pytest.approx(lines[0], rel=1e-3)  # float32, other sums
    one, two = (PrismSequenceForCausalLM.from_pretrained(tmp_path / name / "model") for name in ("one", "two"))
    for name, weight in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[name], weight, rtol=0, atol=0.02)


def divided(rank: int, text: Path, out: Path) -> None:
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    train_lm((text,), out=out, config=replace(CONFIG, batch=1, fsdp=True, recompute=True), device="cpu", threads=1)


def test_divided_weights_train_as_whole_ones_and_leave_the_same_files(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the {n}th line says {n * n} and then {n + 7}" for n in range(300)))
    one = replace(CONFIG, batch=1, train=replace(CONFIG.train, accumulate=2))
    train_lm((text,), out=tmp_path / "one", config=one, device="cpu", threads=1)
    run_ranks(2, divided, text, tmp_path / "two")
    lines = [
        [line["loss"] for line in read_journal(tmp_path / name / "log.jsonl") if "loss" in line]
        for name in ("one", "two")
    ]
    assert len(lines[0]) == 16
    assert lines[1] == pytest.approx(lines[0], rel=1e-3)
    for part in ("model", "optimiser"):  # a file of each process
        assert len(list((checkpoints.newest(tmp_path / "two", "last") / part).glob("*.safetensors"))) == 2
    a, b = (PrismSequenceForCausalLM.from_pretrained(tmp_path / name / "model") for name in ("one", "two"))
    for name, weight in a.state_dict().items():
        torch.testing.assert_close(b.state_dict()[name], weight, rtol=0, atol=0.02)
    # what two processes wrote, one goes on with
    facts = checkpoints.load_facts(checkpoints.newest(tmp_path / "two", "last"))
    assert facts["finished"]
    kept = checkpoints.load_tensors(checkpoints.newest(tmp_path / "two", "last"), "optimiser")
    alone = checkpoints.load_tensors(checkpoints.newest(tmp_path / "one", "last"), "optimiser")
    assert {name: x.shape for name, x in kept.items()} == {name: x.shape for name, x in alone.items()}


def test_a_mixer_that_cannot_be_cut_is_refused_at_the_door() -> None:
    with pytest.raises(InputError, match="attention cannot share a sequence"):
        replace(CONFIG, mixer="gated-deltanet,attention", context_parallel=2)
