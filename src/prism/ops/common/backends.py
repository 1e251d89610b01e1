"""Which code computes an operator: named by the caller or, for `auto`, picked by device and by what compiles here."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from prism.errors import suggest
from prism.ops.common.checks import compute_dtype

Backend = Literal["auto", "reference", "chunk", "cpu", "triton"]
X = TypeVar("X")
Forward = Callable[[X], tuple[Tensor, Tensor]]


def choose(name: str, q: Tensor, modules: Mapping[str, str]) -> str:
    """The backend of that name or, for `auto`, the fastest that these tensors can have."""
    known = [backend for backend in get_args(Backend) if backend in ("auto", "reference", *modules)]
    if name not in known:
        raise ValueError(f"unknown backend {name!r}: {suggest(str(name), known)}")
    if name != "auto":
        return name
    if q.device.type == "cpu" and compiles(modules["cpu"], compute_dtype(q.dtype)):
        return "cpu"
    on_gpu = q.device.type == "cuda" and q.dtype != torch.float64 and "triton" in modules
    return "triton" if on_gpu and has_triton() else "chunk"


def pick(name: str, q: Tensor, reference: Forward[X], modules: Mapping[str, str]) -> Forward[X]:
    """`reference`, or `forward` of the module of that name, imported only now."""
    name = choose(name, q, modules)
    if name == "reference":
        return reference
    try:
        forward: Forward[X] = importlib.import_module(modules[name]).forward
    except ImportError as error:
        needs = "triton" if name == "triton" else "numba"
        raise ImportError(
            f"backend {name!r} cannot be loaded ({error}): pip install {needs}, or use 'chunk'"
        ) from error
    return forward


@cache
def has_triton() -> bool:
    """Whether Triton is installed; says once, for a GPU, that it is not."""
    found = importlib.util.find_spec("triton") is not None
    if not found:
        message = "prism runs without its GPU kernels, slower: pip install 'prism-sequence[gpu]'"
        warnings.warn(message, RuntimeWarning, stacklevel=4)
    return found


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
