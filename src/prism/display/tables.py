"""Tables on the terminal: what users gave is printed as text, never as markup; files and pipes are not folded."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def console() -> Console:
    """The screen; a file or a pipe is as wide as a table needs."""
    found = Console()
    return found if found.is_terminal else Console(width=160)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str | None = None) -> None:
    """Prints a table; wide ones are not folded when the output is a file."""
    below = None if caption is None else escape(caption)
    table = Table(title=title, title_justify="left", caption=below, caption_justify="left")
    for n, column in enumerate(columns):
        table.add_column(column, justify="right" if n else "left", no_wrap=not n)
    for row in rows:
        table.add_row(*row)
    console = Console(file=sys.stdout)
    Console(file=sys.stdout, width=None if console.is_terminal else 200, highlight=False).print(table)
