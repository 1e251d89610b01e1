"""What the tensors' device is: a GPU, or the interpreter of the tests; and how precise float32 products are on it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from prism.ops.common.device import on_gpu

# The GPU for which a driver that runs nothing stands (in the tests); none: empty.
pretended = ""


@contextmanager
def standing_for(target: str) -> Iterator[None]:
    """Inside, what depends on the GPU is chosen for this one, whatever is here."""
    global pretended
    before, pretended = pretended, target
    try:
        yield
    finally:
        pretended = before


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU (TRITON_INTERPRET=1 before the first import)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def check_device(q: Tensor) -> None:
    """Refuses tensors that no kernel can reach."""
    if not on_gpu(q) and not interpreted() and not pretended:
        raise ValueError(f"backend 'triton' needs tensors on a GPU, got q on {q.device}: move them, or use 'chunk'")
    if q.dtype == torch.float64:
        raise ValueError("backend 'triton' computes in float32, got q of torch.float64: cast it, or use 'chunk'")


def is_amd() -> bool:
    """Whether kernels are compiled for one of AMD's."""
    return pretended.startswith("gfx") if pretended else torch.version.hip is not None


def product_precision() -> str:
    """How tensor cores take float32: in three terms, which is nearly exact, unless PyTorch was told that one will do.

    AMD has no such form: there float32 products run on the ordinary units.
    """
    if is_amd():
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def solve_precision(dtype: torch.dtype) -> str:
    """The same for the inverse inside a chunk, which is held in float32: half precisions round it afterwards.

    One TF32 term has more digits than bfloat16 and as many as float16.
    """
    wide = dtype == torch.float32 or is_amd()
    return product_precision() if wide else "tf32"
