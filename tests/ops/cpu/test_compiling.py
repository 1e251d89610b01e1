"""Compilation says that it happens."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TINY = """
import sys
sys.modules["prism.tiny"] = sys.modules[__name__]  # the notice is about this package's kernels
__name__ = "prism.tiny"
from prism.ops.cpu import compiling
compiling.NOTICE_AFTER = 0.0
@compiling.kernel
def double(x):
    return 2 * x
assert double(3) == 6
print("hits", sum(double.stats.cache_hits.values()))
"""


def run(code: Path | str, **environment: str) -> tuple[str, str]:
    """What a new Python prints and says on stderr."""
    given = [str(code)] if isinstance(code, Path) else ["-c", code]
    clean = {name: value for name, value in os.environ.items() if name not in ("PRISM_QUIET", "NUMBA_CACHE_DIR")}
    done = subprocess.run([sys.executable, *given], capture_output=True, text=True, env=clean | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    code = tmp_path / "tiny.py"
    code.write_text(TINY)
    return code


def test_compiling_is_announced_and_loading_from_the_cache_is_not(tiny: Path) -> None:
    said = [run(tiny) for _ in range(2)]
    assert said[0][1].count("prism: compiling its kernels for this machine") == 1
    assert (said[1][0], said[1][1]) == ("hits 1\n", "")


def test_compiling_is_quiet_where_asked(tiny: Path) -> None:
    assert run(tiny, PRISM_QUIET="1")[1] == ""


MIXED_UP = """
import os
from numba import float64
from prism.ops.cpu import compiling
@compiling.kernel
def double(x):
    return 2 * x
if "SPOIL" in os.environ:
    double(3)
    file = double._cache._cache_file
    [(key, name)] = file._load_index().items()
    file._save_index({((float64,), *key[1:]): name})
else:
    print(double(1.5), double(1.5))
"""


def test_what_another_process_cached_under_the_same_name_is_not_taken_for_ours(tmp_path: Path) -> None:
    code = tmp_path / "mixed_up.py"
    code.write_text(MIXED_UP)
    run(code, SPOIL="1")  # as where two processes save at once: the index of one, the code of the other
    assert [run(code)[0] for _ in range(2)] == ["3.0 3.0\n"] * 2


NOWHERE = """
from numba.core import caching
def refuse(self):
    raise OSError(30, "read-only file system")
for name in dir(caching):  # beside the source, and below the home folder
    if name.endswith(("InTreeCacheLocator", "UserWideCacheLocator")):
        getattr(caching, name).ensure_cache_path = refuse
"""


@pytest.mark.parametrize("how", ["kernel", "loop"])
def test_where_nothing_can_be_written_a_temporary_folder_keeps_what_is_compiled_and_that_is_said(
    tmp_path: Path, how: str
) -> None:
    code = tmp_path / "nowhere.py"
    code.write_text(NOWHERE + TINY.replace("@compiling.kernel", f"@compiling.{how}"))
    first, second = (run(code, TMPDIR=str(tmp_path)) for _ in range(2))
    (folder,) = tmp_path.glob("prism-kernels-*")
    for out in (first, second):
        assert out[1].count("neither its own folder nor the home folder can be written to") == 1
        assert f"{folder}; set NUMBA_CACHE_DIR" in out[1]
    assert (first[0], second[0]) == ("hits 0\n", "hits 1\n")
    chosen = tmp_path / "mine"
    assert run(code, NUMBA_CACHE_DIR=str(chosen))[1].count("neither its own folder") == 0
    assert list(chosen.rglob("*.nbi"))
