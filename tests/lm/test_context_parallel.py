"""`prism lm train` on two processes, which share sequences or weights, trains as one process does."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from support.processes import run_ranks

from prism.errors import InputError
from prism.lm.hf.model import PrismSequenceForCausalLM
from prism.lm.train import LanguageConfig
from prism.lm.train import train as train_lm
from prism.models.block import Block
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


def divided(rank: int, text: Path, out: Path, config: LanguageConfig) -> None:
    """Trains with divided weights; a process that is not the first writes its own shards and nothing else."""
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    wrote: list[str] = []
    kinds: set[torch.dtype] = set()
    if rank:
        sys.addaudithook(lambda event, args: _note(event, args, out, wrote))

    def look(block: Block, *_: object) -> None:
        kinds.add(block.mixer.out.weight.dtype)

    with patch.object(Block, "forward", _spied(Block.forward, look)):
        train_lm((text,), out=out, config=config, device="cpu", threads=1)
    assert kinds == {torch.bfloat16 if config.train.precision == "bfloat16" else torch.float32}
    if rank:
        assert wrote
        assert all(name.startswith("shard-00002-") or name == "folder" for name in wrote), wrote


def _spied(method: Any, look: Any) -> Any:
    def spied(self: Block, *args: Any) -> Any:
        look(self)
        return method(self, *args)

    return spied


def _note(event: str, args: Any, out: Path, wrote: list[str]) -> None:
    """What this process makes, changes or removes inside a folder."""
    if event == "open":
        path, _, flags = args
        if isinstance(path, str) and (flags & (os.O_WRONLY | os.O_RDWR)) and str(path).startswith(str(out)):
            wrote.append(Path(path).name)
    elif event in ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree") and str(args[0]).startswith(str(out)):
        wrote.append(f"{event} {args[0]}")
    elif event == "os.mkdir" and str(args[0]).startswith(str(out)):
        wrote.append("folder")


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch: RMSNorm is then not fused
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_divided_weights_train_as_whole_ones_and_one_process_goes_on(tmp_path: Path, precision: Any) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the {n}th line says {n * n} and then {n + 7}" for n in range(300)))
    settings = replace(CONFIG.train, precision=precision)
    one = replace(CONFIG, batch=1, recompute=True, train=replace(settings, accumulate=2))
    train_lm((text,), out=tmp_path / "one", config=one, device="cpu", threads=1)
    two = replace(one, fsdp=True, train=settings)
    run_ranks(2, divided, text, tmp_path / "two", two)
    lines = [
        [line["loss"] for line in read_journal(tmp_path / name / "log.jsonl") if "loss" in line]
        for name in ("one", "two")
    ]
    assert len(lines[0]) == 16
    assert lines[1][0] == pytest.approx(lines[0][0], rel=1e-3)
    # rounded weights move otherwise: float32 and bfloat16 in one process are 1.5 % apart too
    assert lines[1] == pytest.approx(lines[0], rel=1e-3 if precision == "float32" else 0.03)
    last = checkpoints.newest(tmp_path / "two", "last")
    for part in ("model", "optimiser"):  # a file of each process
        assert len(list((last / part).glob("*.safetensors"))) == 2
    a, b = (PrismSequenceForCausalLM.from_pretrained(tmp_path / name / "model") for name in ("one", "two"))
    assert {weight.dtype for weight in b.parameters()} == {torch.float32}
    for name, weight in a.state_dict().items():
        torch.testing.assert_close(b.state_dict()[name], weight, rtol=0, atol=0.02 if precision == "float32" else 0.1)
    kept = checkpoints.load_tensors(last, "optimiser")
    alone = checkpoints.load_tensors(checkpoints.newest(tmp_path / "one", "last"), "optimiser")
    assert {name: (x.shape, x.dtype) for name, x in kept.items()} == {n: (x.shape, x.dtype) for n, x in alone.items()}
    for old in (*checkpoints.checkpoints(tmp_path / "two", "last")[:1], tmp_path / "two" / "model"):
        shutil.rmtree(old)  # as if it had been killed before the last checkpoint
    train_lm((text,), out=tmp_path / "two", config=two, device="cpu", threads=1)
    assert checkpoints.load_facts(checkpoints.newest(tmp_path / "two", "last"))["finished"]
    assert (tmp_path / "two" / "model").is_dir()


def test_a_mixer_that_cannot_be_cut_is_refused_at_the_door() -> None:
    with pytest.raises(InputError, match="attention cannot share a sequence"):
        replace(CONFIG, mixer="gated-deltanet,attention", context_parallel=2)
