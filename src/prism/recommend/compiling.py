"""How the loops of this package are compiled: without the interpreter's lock, cached on disk where that can be."""

import inspect
from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Unwrapped first: the tests' type checks wrap every function, and numba cannot see through them."""
    plain = inspect.unwrap(function)
    try:
        fast: Callable[..., Any] = njit(plain, cache=True, nogil=True)
    except RuntimeError:  # "cannot cache function": neither the package nor the home folder can be written
        fast = njit(plain, nogil=True)
    return fast
