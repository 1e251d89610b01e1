"""How kernels and loops are compiled: without the interpreter's lock, and cached on disk.

`unwrap`, because in the tests a shape checker wraps every function of the package, and numba must see the bare ones.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from inspect import unwrap
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from threading import Timer
from typing import Any

from numba import config, extending, njit
from numba.core import event

# Seconds of compiling after which a line says so.
NOTICE_AFTER = 1.0
# x / 0 is inf, as everywhere in PyTorch: a test for zero would keep a loop from being vectorised.
_DIVISION = {"error_model": "numpy"}
# Fused multiply-adds; sums in any order, so that they vectorise; no flag that assumes finite numbers.
_FUSED, _SUMS = {"contract"}, {"contract", "reassoc", "nsz"}


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The cache is NUMBA_CACHE_DIR, a folder next to the source or the user's; if none is writable, a temporary one."""
    options = {"nogil": True, "fastmath": _FUSED, **_DIVISION, "cache": True, **options}
    try:
        compiled: Any = njit(unwrap(function), **options)
    except RuntimeError:  # "cannot cache function …: no locator available"
        config.CACHE_DIR = _temporary_folder()
        compiled = njit(unwrap(function), **options)
    # numba would compile anew only when the kernel's own file changes, not when one that it imports does
    file = compiled._cache._cache_file
    file._source_stamp = _sources(_folder(unwrap(function)))
    _sign(file)
    return compiled  # type: ignore[no-any-return]


def _sign(file: Any) -> None:
    """What is cached says what it is, and is loaded as nothing else.

    Two processes that compile a kernel for different types at once choose one name for what they save, so that the
    index of one may lead to the code of the other.
    """
    save, load = file.save, file.load

    def save_signed(key: Any, data: Any) -> None:
        save(key, (key, file._source_stamp, data))

    def load_signed(key: Any) -> Any:
        found = load(key)
        signed = isinstance(found, tuple) and found[:2] == (key, file._source_stamp)
        return found[2] if signed else None  # None: compiled anew, and saved in its place

    file.save, file.load = save_signed, load_signed


@cache
def _temporary_folder() -> str:
    """A folder of this user alone: what lies in it is loaded as code."""
    folder = Path(gettempdir()) / f"prism-kernels-{_user()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.lstat() if folder.exists() else None
    if state is None or state.st_uid != _user() or state.st_mode & 0o077 or not os.access(folder, os.W_OK):
        folder = Path(mkdtemp(prefix="prism-kernels-"))
    _say(
        "prism: neither its own folder nor the home folder can be written to, so compiled kernels are kept in "
        f"{folder}; set NUMBA_CACHE_DIR to a folder that lasts"
    )
    return str(folder)


def _user() -> int:
    """The user, by number (0 where there are none, as on Windows)."""
    return os.getuid() if hasattr(os, "getuid") else 0


class _Notice(event.Listener):
    """Says once that kernels are being compiled, not loaded from the cache, if that takes longer than a second."""

    def __init__(self) -> None:
        self.depth, self.announced = 0, False
        self.timer: Timer | None = None

    def on_start(self, event: Any) -> None:
        """A kernel, or one that it calls, is about to be compiled."""
        self.depth += 1
        if self.depth == 1 and not self.announced and event.data["dispatcher"].py_func.__module__.startswith("prism."):
            self.timer = Timer(NOTICE_AFTER, self._announce)
            self.timer.daemon = True
            self.timer.start()

    def on_end(self, event: Any) -> None:
        """It is compiled."""
        self.depth -= 1
        if self.depth == 0 and self.timer is not None:
            self.timer.cancel()

    def _announce(self) -> None:
        self.announced = True
        _say("prism: compiling its kernels for this machine; the next start loads them from the cache")


event.register("numba:compile", _Notice())


def _say(text: str) -> None:
    """One line on stderr, unless PRISM_QUIET is set."""
    if not os.environ.get("PRISM_QUIET"):
        print(text, file=sys.stderr, flush=True)


def _folder(function: Callable[..., Any]) -> Path:
    """Where all that a kernel is made of lies: this folder, with those in it; or the one that its file is in."""
    file, here = Path(function.__code__.co_filename), Path(__file__).parent
    return here if here in file.parents else file.parent


@cache
def _sources(folder: Path) -> str:
    """A digest of every file in it."""
    return sha256(b"".join(file.read_bytes() for file in sorted(folder.rglob("*.py")))).hexdigest()


# Called from Python, on any thread.
kernel = _compiled
# Called from kernels only: leaving out the entry points for Python and C nearly halves the time to compile.
inner = partial(_compiled, no_cpython_wrapper=True, no_cfunc_wrapper=True)
inner_sum = partial(inner, fastmath=_SUMS)
kernel_sum = partial(kernel, fastmath=_SUMS)
# Loops over logs and tables, elsewhere in the package: sums in their order, and a division by zero is an error.
loop = partial(_compiled, fastmath=False, error_model="python")


def intrinsic(function: Callable[..., Any]) -> Any:
    """A function that emits LLVM's intermediate language where a kernel calls it."""
    return extending.intrinsic(unwrap(function))


def overload(of: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """What kernels call for `of`, chosen by the types of its arguments."""
    options = {"fastmath": _FUSED, "forceinline": True, **_DIVISION}  # a call inside a loop would not vectorise
    return lambda choose: extending.overload(of, jit_options=options)(unwrap(choose))
