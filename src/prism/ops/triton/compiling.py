"""How kernels are declared: `unwrap`, because in the tests a shape checker wraps every function of the package."""

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import triton


def kernel(function: Callable[..., Any]) -> Any:
    """A function compiled for the GPU, launched from Python or called from other kernels."""
    return triton.jit(unwrap(function))
