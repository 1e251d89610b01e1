"""What users gave, printed as text: control characters are shown, not obeyed."""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prism.errors import Note

# C0, C1, DEL, lone surrogates, line separators, and what reorders the text around it.
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    """One line of text that a terminal prints as it is: `\\x1b` for an escape, `\\n` for a new line."""
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], str(text))


def plain_lines(text: object) -> str:
    """The same of several lines, whose ends stay."""
    return "\n".join(map(plain, str(text).split("\n")))


@contextmanager
def notes_as_lines() -> Iterator[None]:
    """Notes of the body go to the terminal as one line each, at once."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, Note):
            print(f"prism: note: {plain(message)}", file=sys.stderr, flush=True)
        else:
            before(message, category, *place, **more)

    with warnings.catch_warnings():
        before, warnings.showwarning = warnings.showwarning, show
        warnings.simplefilter("always", Note)
        yield
