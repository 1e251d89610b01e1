"""The machine: memory in bytes on every system, and systems that lack what Linux has."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from prism.machine import peak_memory


@pytest.mark.parametrize(("system", "factor"), [("Linux", 1024), ("Darwin", 1)])
def test_peak_memory_is_in_bytes(monkeypatch: pytest.MonkeyPatch, system: str, factor: int) -> None:
    """`ru_maxrss` is in kilobytes on Linux and in bytes on macOS."""
    fake = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda who: SimpleNamespace(ru_maxrss=3000))
    monkeypatch.setitem(sys.modules, "resource", fake)  # type: ignore[arg-type]
    monkeypatch.setattr("platform.system", lambda: system)
    assert peak_memory() == 3000 * factor


def test_peak_memory_is_unknown_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory() != peak_memory()  # nan


def test_kernels_load_and_files_are_written_without_what_windows_lacks(tmp_path: Path) -> None:
    code = (
        "import os, sys; import torch, numba; from pathlib import Path\n"  # these look for forks themselves
        "del os.register_at_fork, os.getuid\n"
        "import prism.ops.cpu.threads, prism.ops.cpu.compiling as compiling\n"
        "from prism.files import flush\n"
        "folder, os.name, open_ = Path(sys.argv[1]), 'nt', os.open\n"
        "os.open = lambda path, *more: open_(path, *more) if not os.path.isdir(path) else 1 / 0\n"
        "flush(folder); assert compiling._user() == 0\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
