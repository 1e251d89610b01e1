"""Docstrings here are plain text with `code` in single backticks: made safe for Sphinx, which reads RST."""

import re
from dataclasses import is_dataclass
from typing import Any

CODE = re.compile(r"(``.*?``|`[^`\n]*(?:\n[^`\n]*)?`)", re.DOTALL)
# What reStructuredText would take for emphasis, substitutions and links: the mathematics of the paper is full of it.
MARKUP = re.compile(r"(?<!\\)([*|]|(?<=\w)_(?!\w))")
COLON = "\ue000"  # a letter that no docstring has


def escaped(text: str) -> str:
    """`code` as a literal, everything else as the letters that it is."""
    parts = CODE.split(text)
    for n, part in enumerate(parts):
        if n % 2 == 0:
            parts[n] = MARKUP.sub(r"\\\1", part)
        elif not part.startswith("``"):
            parts[n] = f"``{' '.join(part[1:-1].split())}``"
    return "".join(parts)


def with_blocks(lines: list[str]) -> list[str]:
    """Lines that stand four columns in after an empty line are a block of code; a section's arguments are not."""
    made: list[str] = []
    for n, line in enumerate(lines):
        starts = line.startswith("    ") and n > 0 and not lines[n - 1].strip() and bool(made)
        if starts and not (made[-2:] and made[-2].startswith("    ")):
            made += ["::", ""]
        made.append(line)
    return made


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Sphinx's event for each docstring: `lines` are changed in place, before napoleon reads the sections."""
    text = escaped("\n".join(with_blocks(lines)))
    lines[:] = (text.replace(":", COLON) if what == "attribute" else text).split("\n")


def restore(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """After napoleon: the colons of a field's line, which napoleon would take for the end of a type."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def signature(app: Any, what: str, name: str, obj: Any, options: Any, *rest: Any) -> tuple[str, None] | None:
    """The fields of a config are listed below it, each with its line: its signature would say them twice."""
    return ("", None) if what == "class" and is_dataclass(obj) else None


def setup(app: Any) -> dict[str, Any]:
    """Before and after napoleon, which makes field lists of `Args:`."""
    app.connect("autodoc-process-docstring", process, priority=100)
    app.connect("autodoc-process-docstring", restore, priority=900)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True}
