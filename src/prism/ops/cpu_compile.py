"""How the kernels are compiled: without the interpreter's lock, and cached on disk."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from numba import extending, njit


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The cache is a directory next to the source or, where that is read-only, the user's; without either, none."""
    function = inspect.unwrap(function)  # the tests' shape checker wraps every function of the package
    try:
        compiled: Callable[..., Any] = njit(function, nogil=True, cache=True, **options)
    except RuntimeError:  # "cannot cache function …: no locator available"
        compiled = njit(function, nogil=True, **options)
    return compiled


# Called from Python, on any thread.
kernel = _compiled
# Called from kernels only: leaving out the entry points for Python and C nearly halves the time to compile.
inner = partial(_compiled, no_cpython_wrapper=True, no_cfunc_wrapper=True)
# Sums may be taken in any order, so that they vectorise; no flag that assumes finite numbers.
inner_sum = partial(inner, fastmath={"reassoc", "contract", "nsz"})
kernel_sum = partial(kernel, fastmath={"reassoc", "contract", "nsz"})


def intrinsic(function: Callable[..., Any]) -> Any:
    """A function that emits LLVM's intermediate language where a kernel calls it."""
    return extending.intrinsic(inspect.unwrap(function))
