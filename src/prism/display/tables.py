"""Tables on the terminal: what users gave is printed as text, never as markup; files and pipes are not folded."""

import io
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from prism.display.text import plain, plain_lines
from prism.errors import needs

needs("rich", extra="cli")  # before the imports that would fail without it
from rich.console import Console  # noqa: E402
from rich.table import Table as Table  # noqa: E402
from rich.text import Text  # noqa: E402

# One line of text, or several lines.
Cell = str | tuple[str, ...]
# Columns of a file or a pipe: more than any table has.
WIDTH = 200


def show(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str | None = None,
    left: Sequence[int] = (0,),
    lines: bool = False,
) -> None:
    """Prints a table below its title; see `table`."""
    made = table(columns, rows, caption=caption, left=left, lines=lines)
    show_all(*([plain(title), made] if title else [made]))  # above it: inside, a title is folded to the table's width


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str | None = None,
    left: Sequence[int] = (0,),
    lines: bool = False,
) -> Table:
    """A table whose columns `left` are aligned left and whose first is never folded; `lines` between its rows."""
    below = None if caption is None else Text(plain_lines(caption), style="table.caption")
    made = Table(caption=below, caption_justify="left", show_lines=lines)
    for n, column in enumerate(columns):
        made.add_column(Text(plain(column)), justify="left" if n in left else "right", no_wrap=not n)
    for row in rows:
        made.add_row(*(_text(cell) for cell in row))
    return made


def show_all(*parts: Table | str) -> None:
    """Prints tables and text, one below the other."""
    shown = Console(file=sys.stdout, highlight=False)
    _print(shown if shown.is_terminal else Console(file=sys.stdout, highlight=False, width=WIDTH), parts)


def as_text(*parts: Table | str) -> str:
    """What `show_all` prints into a file."""
    into = io.StringIO()
    _print(Console(file=into, highlight=False, width=WIDTH), parts)
    return into.getvalue()


def _print(console: Any, parts: Iterable[Table | str]) -> None:
    for part in parts:
        console.print(Text(plain_lines(part)) if isinstance(part, str) else part, soft_wrap=isinstance(part, str))


def _text(cell: Cell) -> Text:
    return Text(plain(cell) if isinstance(cell, str) else "\n".join(map(plain, cell)))
