"""A device that is not the CPU, for machines without one: it computes, and refuses what a GPU would refuse.

Its tensors hold a tensor of the CPU that nobody else sees. An operation that is given tensors of both is an error, and
so is asking one for its numbers without `.cpu()`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

NAME = "far"
CPU = torch.device("cpu")
_libraries: list[torch.library.Library] = []


class Far(Tensor):
    """A tensor of that device."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "Far":
        """Its sizes and type; the numbers are `raw`'s."""
        with torch.inference_mode(False):
            made = torch._C._acc.create_empty_tensor(raw.shape, raw.dtype)  # type: ignore[attr-defined]
        made.__class__ = cls
        return made  # type: ignore[no-any-return]

    def __init__(self, raw: Tensor):
        self.raw = raw

    def detach(self) -> "Far":
        """Itself: there are no gradients there."""
        return self

    def requires_grad_(self, requires_grad: bool = True) -> "Far":
        """The same."""
        return self


def _near(value: Any) -> Any:
    if isinstance(value, Far):
        return value.raw
    return CPU if isinstance(value, torch.device) and value.type == NAME else value


def _compute(operation: Any, *args: Any, **named: Any) -> Any:
    tensors = [x for x in tree_leaves((args, named)) if isinstance(x, Tensor)]
    if any(not isinstance(x, Far) and x.ndim for x in tensors):
        raise RuntimeError(f"{operation}: tensors of the CPU and of another device")
    ours = {id(x.raw): x for x in tensors if isinstance(x, Far)}
    args, named = tree_map(_near, (args, named))
    found = operation(*args, **named)
    return tree_map(lambda x: (ours[id(x)] if id(x) in ours else Far(x)) if isinstance(x, Tensor) else x, found)


def _strided(x: Far, size: Any, stride: Any, offset: int | None = None) -> Far:
    """All views come here, with strides as if their origin were contiguous; a view of one that is not is a copy."""
    whole = x.raw.contiguous()
    return Far(whole.as_strided(size, stride, (offset or 0) + whole.storage_offset()))


def _arange(*limits: Any, dtype: Any = None, **_: Any) -> Far:
    return Far(torch.arange(*limits, dtype=dtype))


def _convolution(*given: Any) -> Any:
    return Far(torch.convolution(*tree_map(_near, given)))


def _copy(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    _near(to).copy_(_near(source))
    return to


def _register() -> None:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)
    every, single = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(_compute, "PrivateUse1")
    for kind in ("arange", "arange.start", "arange.start_step"):
        single.impl(kind, _arange, "PrivateUse1")
    for name in ("view", "_unsafe_view"):
        single.impl(name, lambda x, size: Far(x.raw.reshape(size)), "PrivateUse1")
    for name in ("alias", "detach"):  # torch's own would lose the numbers
        single.impl(name, lambda x: Far(x.raw), "PrivateUse1")
    single.impl("abs", lambda x: Far(x.raw.abs()), "PrivateUse1")  # torch's own begins with a tensor of no size
    single.impl("as_strided", _strided, "PrivateUse1")
    single.impl("convolution_overrideable", _convolution, "PrivateUse1")
    single.impl("_copy_from", _copy, "PrivateUse1")
    _libraries.extend([every, single])


@contextmanager
def far_device() -> Iterator[str]:
    """The device's name; inside, models can be moved there."""
    if not _libraries:
        _register()
    # a tensor of another device cannot take the place of a weight's numbers: it takes that of the weight
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        yield NAME
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
