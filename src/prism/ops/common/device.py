"""What differs between devices: which are GPUs of CUDA or ROCm (both `cuda`), and which have no float64."""

import torch
from torch import Tensor

# Types of device whose tensors the kernels of `ops/triton` take.
GPUS = {"cuda"}
# Those that cannot compute in float64: Apple's.
WITHOUT_FLOAT64 = {"mps"}


def on_gpu(x: Tensor) -> bool:
    """Whether Triton's kernels can reach this tensor."""
    return x.device.type in GPUS


def exact_dtype(device: torch.device) -> torch.dtype:
    """The dtype of what must not round: float64, or float32 where there is nothing better."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64
