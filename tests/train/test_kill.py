"""A run killed at random moments and started again ends with the weights of an undisturbed one."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from support import tiny

from prism.train import checkpoints
from prism.train.journal import read_journal


def tensors(out: Path, kind: str, name: str) -> dict[str, torch.Tensor]:
    found = checkpoints.newest(out, kind)
    assert found is not None
    return checkpoints.load_tensors(found, name)


def run_for(seconds: float | None, out: Path, *, saved: bool = False) -> None:
    """Trains in a process of its own, killed after so long, or so long after it has saved (`saved`)."""
    # the server has imported and compiled everything: the kills fall into the training
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.warm"])
    child = context.Process(target=tiny.fit, args=(out,))
    before = checkpoints.newest(out, "last")
    child.start()
    while saved and child.is_alive() and checkpoints.newest(out, "last") == before:
        time.sleep(0.001)
    child.join(seconds)
    if child.is_alive():
        os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)


def test_ten_kills_at_random_moments_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(tiny.__file__).parents[1]))  # for the server, which starts now
    run_for(None, tmp_path / "warm")
    began = time.monotonic()
    run_for(None, tmp_path / "whole")
    span = time.monotonic() - began
    moments, found = random.Random(0), set()
    for n in range(10):
        # at any moment of a start, and then in the midst of training, however busy the machine is
        run_for(moments.uniform(0, 0.1 if n % 3 else 0.4) * span, tmp_path / "killed", saved=n % 3 > 0)
        found.add(checkpoints.newest(tmp_path / "killed", "last"))
    assert len(found) > 2  # the kills did fall into the training
    run_for(None, tmp_path / "killed")
    for kind, name in (("best", "model"), ("last", "model"), ("last", "optimiser")):
        whole, killed = (tensors(tmp_path / out, kind, name) for out in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert all(torch.equal(whole[key], killed[key]) for key in whole)
    logs = [read_journal(tmp_path / out / "log.jsonl") for out in ("whole", "killed")]
    for line in [*logs[0], *logs[1]]:
        line.pop("tokens_per_second", None)
    assert logs[0] == logs[1]
