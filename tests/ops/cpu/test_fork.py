"""A process forked from one that computed on several threads is warned, once, that PyTorch may hang in it."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, sys, warnings
import numpy as np, torch
from prism.ops.cpu import threads
parent, child = map(int, sys.argv[1:])
torch.set_num_threads(parent)
threads.run(lambda begin, end: None, np.ones(4))
sys.stdout.flush()
if os.fork() == 0:
    torch.set_num_threads(child)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            threads.run(lambda begin, end: None, np.ones(4))
    print(len(seen), *(str(one.message) for one in seen), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.parametrize(("parent", "child", "warned"), [(2, 2, 1), (2, 1, 0), (1, 1, 0)])
def test_a_forked_process_is_warned_once(parent: int, child: int, warned: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, str(parent), str(child)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(warned))
    assert ("start it with multiprocessing's 'spawn'" in done.stdout) == bool(warned)
