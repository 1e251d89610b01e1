"""The machine that numbers are measured on: what it is, and how fast it multiplies."""

import platform
import time
from pathlib import Path
from typing import Any

import torch


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
