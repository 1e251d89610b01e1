"""Runs the tests of `interpreted/` in a process with TRITON_INTERPRET=1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need Triton: pip install 'prism-sequence[gpu]'")
FOLDER = Path(__file__).parent / "interpreted"


def interpret(marker: str) -> None:
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-m",
        marker,
        str(FOLDER),
    ]
    done = subprocess.run(
        words, env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}, capture_output=True
    )
    assert done.returncode == 0, done.stdout.decode()[-6000:]


def test_kernels_equal_their_definitions_in_the_interpreter() -> None:
    interpret("not slow")


@pytest.mark.slow
def test_kernels_equal_their_definitions_at_every_shape() -> None:
    interpret("slow")
