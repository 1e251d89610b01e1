"""Two processes that exchange gradients train as one does on the joint batch, and stop and go on as one does."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, PartialState
from safetensors.torch import load_file, save_file
from support.toy import Toy, net
from torch import Tensor, nn

from prism.train import checkpoints
from prism.train.config import TrainConfig
from prism.train.journal import read_journal
from prism.train.loop import train

CONFIG = TrainConfig(epochs=2, lr=0.02, log_steps=1)


def model() -> nn.Module:
    made = net().double()
    made[1].p = 0.0  # dropout differs between processes
    return made


def join(rank: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    torch.set_num_threads(1)


def leave(made: nn.Module, rank: int, out: Path) -> None:
    assert torch.distributed.get_backend() == "gloo"
    save_file(made.state_dict(), out / f"end{rank}.safetensors")
    torch.distributed.destroy_process_group()


def work(rank: int, port: int, out: Path) -> None:
    join(rank, port)
    made = model()
    train(made, Toy(), CONFIG, out=out, progress=False)
    leave(made, rank, out)


def work_until(rank: int, port: int, out: Path, signals: dict[int, int], saver: int | None) -> None:
    """Trains with dropout; the process sends itself `signals[rank]` in its third update, `saver` saves each update."""
    join(rank, port)
    seen = count()

    def third(loss: Tensor) -> Tensor:
        if next(seen) == 2 and rank in signals:
            os.kill(os.getpid(), signals[rank])
        return loss

    made = net().double()
    config = replace(CONFIG, save_seconds=0 if rank == saver else 1e9)
    train(made, Toy(each=third), config, out=out, progress=False)
    leave(made, rank, out)


def run(target: Callable[..., None], *args: object) -> list[int | None]:
    """Two processes of their own; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=target, args=(rank, port, *args)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        if worker.is_alive():
            worker.kill()
    return [worker.exitcode for worker in workers]


def ends(out: Path) -> list[dict[str, Tensor]]:
    return [load_file(out / f"end{rank}.safetensors") for rank in range(2)]


def test_two_processes_killed_and_started_again_end_as_if_they_had_not_been(tmp_path: Path) -> None:
    assert run(work_until, tmp_path / "whole", {}, 0) == [0, 0]
    kill = dict.fromkeys(range(2), signal.SIGKILL)
    steps = []
    for _ in range(2):
        assert run(work_until, tmp_path / "killed", kill, 0) == [-signal.SIGKILL] * 2
        steps.append(checkpoints.load_facts(checkpoints.newest(tmp_path / "killed", "last"))["step"])
    assert steps == [2, 4]  # each start got two updates further
    assert run(work_until, tmp_path / "killed", {}, 0) == [0, 0]
    for rank, (whole, killed) in enumerate(zip(ends(tmp_path / "whole"), ends(tmp_path / "killed"), strict=True)):
        for name, value in whole.items():
            torch.testing.assert_close(killed[name], value, msg=f"{name} on process {rank}")


def test_one_process_asked_to_stop_stops_both_and_the_run_goes_on_from_there(tmp_path: Path) -> None:
    assert run(work_until, tmp_path / "whole", {}, 0) == [0, 0]
    assert run(work_until, tmp_path / "stopped", {1: signal.SIGINT}, None) == [1, 1]
    assert checkpoints.load_facts(checkpoints.newest(tmp_path / "stopped", "last"))["step"] == 3
    assert run(work_until, tmp_path / "stopped", {}, None) == [0, 0]
    for whole, stopped in zip(ends(tmp_path / "whole"), ends(tmp_path / "stopped"), strict=True):
        torch.testing.assert_close(stopped, whole)


def test_two_processes_equal_one_on_the_joint_batches(tmp_path: Path) -> None:
    assert run(work, tmp_path) == [0, 0]
    alone = model()
    # seven batches per epoch: in the last update of the two processes one of them has nothing to add
    train(alone, Toy(), replace(CONFIG, accumulate=2), out=tmp_path / "alone", progress=False)
    for rank, end in enumerate(ends(tmp_path)):
        for name, value in end.items():
            torch.testing.assert_close(value, alone.state_dict()[name], msg=f"{name} on process {rank}")
    losses = [
        [line["loss"] for line in read_journal(path / "log.jsonl") if "loss" in line]
        for path in (tmp_path, tmp_path / "alone")
    ]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]))
