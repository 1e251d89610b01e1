"""How the kernels are compiled: without the interpreter's lock, and cached on disk.

`unwrap`, because in the tests a shape checker wraps every function of the package, and numba must see the bare ones.
"""

from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from inspect import unwrap
from pathlib import Path
from typing import Any

from numba import extending, njit

# x / 0 is inf, as everywhere in PyTorch: a test for zero would keep a loop from being vectorised.
_DIVISION = {"error_model": "numpy"}
# Fused multiply-adds; sums in any order, so that they vectorise; no flag that assumes finite numbers.
_FUSED, _SUMS = {"contract"}, {"contract", "reassoc", "nsz"}


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The cache is a directory next to the source or, where that is read-only, the user's; without either, none."""
    options = {"nogil": True, "fastmath": _FUSED, **_DIVISION, **options}
    try:
        compiled: Any = njit(unwrap(function), cache=True, **options)
        # numba would compile anew only when the kernel's own file changes, not when one that it imports does
        compiled._cache._cache_file._source_stamp = _sources()
    except RuntimeError:  # "cannot cache function …: no locator available"
        compiled = njit(unwrap(function), **options)
    return compiled  # type: ignore[no-any-return]


@cache
def _sources() -> str:
    """A digest of every file that kernels are made of."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


# Called from Python, on any thread.
kernel = _compiled
# Called from kernels only: leaving out the entry points for Python and C nearly halves the time to compile.
inner = partial(_compiled, no_cpython_wrapper=True, no_cfunc_wrapper=True)
inner_sum = partial(inner, fastmath=_SUMS)
kernel_sum = partial(kernel, fastmath=_SUMS)


def intrinsic(function: Callable[..., Any]) -> Any:
    """A function that emits LLVM's intermediate language where a kernel calls it."""
    return extending.intrinsic(unwrap(function))


def overload(of: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """What kernels call for `of`, chosen by the types of its arguments."""
    options = {"fastmath": _FUSED, "forceinline": True, **_DIVISION}  # a call inside a loop would not vectorise
    return lambda choose: extending.overload(of, jit_options=options)(unwrap(choose))
