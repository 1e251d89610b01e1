"""How this program is called, for commands that it prints, and where its model runs."""

import shlex
import shutil
import sys
from pathlib import Path

import torch

from prism.machine import pick_device, use_threads


def program() -> str:
    """`prism` where the shell finds this very program under that name; else its path, or its module."""
    here = Path(sys.argv[0])
    if here.name != "prism":  # python -m prism.cli, or a program that imports prism
        return f"{shlex.quote(sys.executable)} -m prism.cli"
    found = shutil.which("prism")
    if found is not None and Path(found).resolve() == here.resolve():
        return "prism"
    return shlex.quote(sys.argv[0])


def place_of(device: str | None, threads: int | None) -> str:
    """Sets the threads and says where the model runs."""
    use_threads(threads)
    place = pick_device(device)
    return f"on {place}" + (f", {torch.get_num_threads()} thread(s)" if place.type == "cpu" else "")
