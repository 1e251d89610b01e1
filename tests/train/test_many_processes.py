"""Two processes that exchange gradients train as one process does on the joint batch."""

import multiprocessing
import os
import socket
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, PartialState
from safetensors.torch import load_file, save_file
from support.toy import Toy, net
from torch import nn

from prism.train.config import TrainConfig
from prism.train.journal import read_journal
from prism.train.loop import train


def model() -> nn.Module:
    made = net().double()
    made[1].p = 0.0  # dropout differs between processes
    return made


def work(rank: int, port: int, out: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    torch.set_num_threads(1)
    made = model()
    train(made, Toy(), TrainConfig(epochs=2, lr=0.02, log_steps=1), out=out, progress=False)
    assert torch.distributed.get_backend() == "gloo"
    save_file(made.state_dict(), out / f"end{rank}.safetensors")
    torch.distributed.destroy_process_group()


def test_two_processes_equal_one_on_the_joint_batches(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=work, args=(rank, port, tmp_path)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    alone = model()
    # seven batches an epoch: in the last update of the two processes one of them has nothing to add
    train(
        alone, Toy(), TrainConfig(epochs=2, lr=0.02, accumulate=2, log_steps=1), out=tmp_path / "alone", progress=False
    )
    for rank in range(2):
        for name, value in load_file(tmp_path / f"end{rank}.safetensors").items():
            torch.testing.assert_close(value, alone.state_dict()[name], msg=f"{name} on process {rank}")
    losses = [
        [line["loss"] for line in read_journal(path / "log.jsonl") if "loss" in line]
        for path in (tmp_path, tmp_path / "alone")
    ]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]))
