"""Before torch loads, the program asks idle OpenMP threads to sleep; a user's own setting wins."""

import os
import subprocess
import sys

import pytest

ASK = """import os, sys
from prism import cli
cli.main(['--version'])
print(os.environ.get('OMP_WAIT_POLICY'), os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"""
NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.mark.parametrize(
    ("mine", "expected"),
    [
        ({}, "None 30000 False"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None False"),
        ({"GOMP_SPINCOUNT": "9"}, "None 9 False"),
    ],
)
def test_idle_threads_sleep_unless_the_user_says_otherwise(mine: dict[str, str], expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in NAMES} | mine
    found = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == expected
