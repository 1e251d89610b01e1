"""A page of the documentation as a test: its Python and its commands run as they stand, in its order."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from prism import cli

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name: str, other: Callable[[str], None]) -> None:
    """Runs the blocks of a page here; `other` is given those that are neither Python nor commands."""
    names: dict[str, object] = {}
    for language, block in re.findall(r"```(\w*)\n(.*?)```", (DOCS / name).read_text(), re.DOTALL):
        if language == "python":
            exec(compile(block, name, "exec"), names)
        elif language == "sh":
            for line in block.splitlines():
                program, *words = shlex.split(line)
                assert program == "prism"
                cli.main(words)
        else:
            other(block)
