"""What a user can get wrong, said in one line: the argument, its value, the remedy."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used. The command line prints the text alone and exits with 2."""


def suggest(name: str, known: Iterable[str]) -> str:
    """A clause for an error message: the nearest known name, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
