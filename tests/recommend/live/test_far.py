"""Runs the tests of `far/` in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import torch


def test_live_users_on_another_device_are_those_of_the_cpu() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*words, str(Path(__file__).parent / "far")], env=os.environ | {"PRISM_FAR": "1"}, capture_output=True
    )
    none = 5  # an older PyTorch knows no devices made in Python
    assert done.returncode in (0, none), done.stdout.decode()[-6000:]
    assert done.returncode == 0 or not hasattr(torch._C, "_acc")
