"""What all tests share."""

import os

# Some virtual machines announce AMX and then stop a process that uses it; oneDNN's bfloat16 products would.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("PRISM_QUIET", "1")  # of compiling

import pytest
import torch
from hypothesis import settings

# two processes on a core make two torch threads far slower than one
torch.set_num_threads(1)

settings.register_profile("prism", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("prism")


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)
