"""Which code computes an operator: named by the caller or, for `auto`, picked by device and by what compiles here."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from prism.errors import suggest
from prism.ops.common.checks import compute_dtype

Backend = Literal["auto", "reference", "chunk", "cpu"]
X = TypeVar("X")
Forward = Callable[[X], tuple[Tensor, Tensor]]


def pick(name: str, q: Tensor, reference: Forward[X], modules: Mapping[str, str]) -> Forward[X]:
    """`reference`, or `forward` of the module of that name, imported only now."""
    if name not in get_args(Backend):
        raise ValueError(f"unknown backend {name!r}: {suggest(str(name), get_args(Backend))}")
    if name == "auto":
        name = "cpu" if q.device.type == "cpu" and compiles(modules["cpu"], compute_dtype(q.dtype)) else "chunk"
    if name == "reference":
        return reference
    try:
        forward: Forward[X] = importlib.import_module(modules[name]).forward
    except ImportError as error:
        raise ImportError(f"backend {name!r} cannot be loaded ({error}): pip install numba, or use 'chunk'") from error
    return forward


@cache
def compiles(module: str, dtype: torch.dtype) -> bool:
    """Whether the compiled backend works on this machine; compiles it, or loads what an earlier process compiled."""
    try:
        importlib.import_module(module).compile(dtype)
    except Exception as error:  # whatever stops a compiler, the chunk form needs none
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"prism runs without its compiled CPU kernels, slower ({reason})", RuntimeWarning, stacklevel=4)
        return False
    return True
