"""Jobs whose memory is measured: in a module that a process of its own can import."""

import os

import torch

from prism.bench.measure import Job


def hold(megabytes: int) -> dict[str, Job]:
    return {"hold": lambda: torch.ones(megabytes << 18).sum()}


def die() -> dict[str, Job]:
    return {"die": lambda: os._exit(3)}
