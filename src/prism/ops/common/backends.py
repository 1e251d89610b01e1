"""Which code computes an operator: named by the caller or, for `auto`, picked by device and by what compiles here."""

import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from prism.errors import suggest
from prism.ops.common.autograd import outside_autocast, transformed
from prism.ops.common.checks import compute_dtype
from prism.ops.common.device import on_gpu

Backend = Literal["auto", "reference", "chunk", "cpu", "triton"]
X = TypeVar("X", bound=tuple[Any, ...])
Forward = Callable[[X], tuple[Tensor, Tensor]]


def choose(name: str, operands: tuple[Any, ...], modules: Mapping[str, str], *, traced: bool = False) -> str:
    """The backend of that name or, for `auto`, the fastest that these operands, q first, can have.

    Inside a trace `auto` stays what it is on the CPU: what runs is chosen when it runs.
    """
    known = [backend for backend in get_args(Backend) if backend in ("auto", "reference", *modules)]
    if name not in known:
        raise ValueError(f"unknown backend {name!r}: {suggest(str(name), known)}")
    if name != "reference" and transformed():
        raise NotImplementedError(f"backend {name!r} does not support torch.func: use backend='reference'")
    q = operands[0]
    if name != "auto" or not isinstance(q, Tensor):
        return name
    if traced and q.device.type == "cpu":
        return name
    if q.device.type == "cpu" and compiles(modules["cpu"], compute_dtype(q.dtype), is_trained(operands)):
        return "cpu"
    able = on_gpu(q) and q.dtype != torch.float64 and "triton" in modules
    return "triton" if able and has_triton() else "chunk"


def pick(name: str, x: X, reference: Forward[X], modules: Mapping[str, str], *, autocast: bool) -> Forward[X]:
    """`reference`, or `forward` of the module of that name, imported only now; x are the operands."""
    name = choose(name, x, modules)
    if name == "reference":
        return partial(outside_autocast, reference) if autocast else reference
    try:
        forward: Forward[X] = importlib.import_module(modules[name]).forward
    except ImportError as error:
        needs = "triton" if name == "triton" else "numba"
        raise ImportError(
            f"backend {name!r} cannot be loaded ({error}): pip install {needs}, or use 'chunk'"
        ) from error
    return forward


def is_trained(operands: tuple[Any, ...]) -> bool:
    """Whether gradients of some operand will be asked for."""
    return torch.is_grad_enabled() and any(isinstance(y, Tensor) and y.requires_grad for y in operands)


@cache
def has_triton() -> bool:
    """Whether Triton is installed; says once, for a GPU, that it is not."""
    found = importlib.util.find_spec("triton") is not None
    if not found:
        message = "prism runs without its GPU kernels, slower: pip install 'prism-sequence[gpu]'"
        warnings.warn(message, RuntimeWarning, stacklevel=4)
    return found


@cache
def compiles(module: str, dtype: torch.dtype, backward: bool = False) -> bool:
    """Whether the compiled backend works on this machine; compiles it, or loads what an earlier process compiled."""
    try:
        with saved_tensors_hooks(_itself, _itself):  # checkpointing counts what is saved, and this is saved once only
            importlib.import_module(module).compile(dtype, backward=backward)
    except _expected() as error:
        reason, *_ = re.sub("\x1b\\[[0-9;]*m", "", str(error)).splitlines() or [""]  # numba's are in colour
        _say_once(f"prism runs without its compiled CPU kernels, slower ({type(error).__name__}: {reason})")
        return False
    return True


def _itself(x: Tensor) -> Tensor:
    return x


def _expected() -> tuple[type[Exception], ...]:
    """What stops a compiler on some machines: no numba (or one that this Python or numpy cannot load), its errors."""
    try:
        from numba.core.errors import NumbaError
    except ImportError:
        return (ImportError,)
    return ImportError, NumbaError, OSError, RuntimeError  # the last two: its cache, and LLVM


@cache
def _say_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=5)
