"""Which compiled code computes the parts around the recurrence: by the tensors' device, as backends are chosen."""

import importlib
from types import ModuleType

import torch
from torch import Tensor

from prism.ops.common.autograd import transformed
from prism.ops.common.backends import has_triton
from prism.ops.common.device import on_gpu
from prism.ops.cpu import fused as on_cpu

_GPU_DTYPES = {torch.float32, torch.bfloat16, torch.float16}


def kernels_for(*tensors: Tensor, weights: tuple[Tensor, ...] = ()) -> ModuleType | None:
    """The module with `refine`, `normalize`, `conv_silu` (on a GPU `gated_norm` too) that takes these; None: PyTorch.

    On a GPU weights may have another dtype than what they meet: under autocast they are wider.
    Never inside a trace: there PyTorch's own compiler fuses the chain.
    """
    if on_gpu(tensors[0]):
        given, dtypes = (*tensors, *weights), {x.dtype for x in tensors}
        fits = len(dtypes) == 1 and all(on_gpu(x) and x.dtype in _GPU_DTYPES for x in given)
        if not fits or torch.compiler.is_compiling() or transformed() or not has_triton():
            return None
        return importlib.import_module("prism.ops.triton.fused")
    return on_cpu if on_cpu.usable(*tensors, *weights) else None
