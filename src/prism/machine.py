"""The machine that numbers are measured on: what it is, and how fast it multiplies."""

import platform
import time
from pathlib import Path
from typing import Any

import torch

from prism.config import count
from prism.errors import InputError


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    names = [
        line.partition(":")[2].strip()
        for line in (Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else [])
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(names) or None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def pick_device(name: str | None = None) -> torch.device:
    """The device of that name; None: the one that is there, a GPU before the CPU."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device {name!r} cannot be used ({str(error).splitlines()[0]}): try cpu") from None
    return device


def peak_memory() -> float:
    """Bytes that this process has held at most; nan where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if platform.system() == "Darwin" else peak * 1024)


def use_threads(threads: int | None) -> None:
    """Sets how many threads torch and this package's kernels use; None leaves it to torch."""
    if threads is not None:
        torch.set_num_threads(count("threads", threads))


def matmul_rate(device: str = "cpu", *, size: int = 1024, repeats: int = 5) -> float:
    """Floating-point operations per second of a square float32 product: the machine's practical peak."""
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    (a @ b).sum().item()
    fastest = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        (a @ b).sum().item()  # .item() waits for a GPU
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * size**3 / fastest
