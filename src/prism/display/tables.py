"""Tables on the terminal: what users gave is printed as text, never as markup; files and pipes are not folded."""

import sys
from collections.abc import Sequence

from prism.display.text import plain, plain_lines
from prism.errors import needs

needs("rich", extra="cli")  # before the imports that would fail without it
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402


def console() -> Console:
    """The screen; a file or a pipe is as wide as a table needs."""
    found = Console()
    return found if found.is_terminal else Console(width=160)


def show(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str | None = None,
    left: Sequence[int] = (0,),
) -> None:
    """Prints a table whose columns `left` are aligned left; wide ones are not folded when the output is a file."""
    below = None if caption is None else Text(plain_lines(caption), style="table.caption")
    table = Table(title=Text(plain(title), style="table.title"), title_justify="left", caption=below)
    table.caption_justify = "left"
    for n, column in enumerate(columns):
        table.add_column(Text(plain(column)), justify="left" if n in left else "right", no_wrap=not n)
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    console = Console(file=sys.stdout)
    Console(file=sys.stdout, width=None if console.is_terminal else 200, highlight=False).print(table)
