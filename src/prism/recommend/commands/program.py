"""How this program is called where it runs: what a printed command must begin with to work when it is typed."""

import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """`prism` where the shell finds this very program under that name; else its path, or its module."""
    here = Path(sys.argv[0])
    if here.name != "prism":  # python -m prism.cli, or a program that imports prism
        return f"{shlex.quote(sys.executable)} -m prism.cli"
    found = shutil.which("prism")
    if found is not None and Path(found).resolve() == here.resolve():
        return "prism"
    return shlex.quote(sys.argv[0])
