"""What a user can get wrong, said in one line: the argument, its value, the remedy; and what a user should know."""

import difflib
from collections.abc import Iterable
from importlib.util import find_spec


class InputError(ValueError):
    """Something the user gave cannot be used. The command line prints the text alone and exits with 2."""


class DivergedError(InputError):
    """Training came to numbers that are not finite."""


class Note(UserWarning):
    """Something was decided or skipped that the user should know. The command line prints the text alone."""


class MissingExtraError(InputError, ImportError):
    """A library that an extra of this package brings is not installed."""


def needs(*modules: str, extra: str) -> None:
    """Refuses to go on without libraries that `pip install 'prism-sequence[extra]'` brings; imports none of them."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"{', '.join(missing)} is not installed: pip install 'prism-sequence[{extra}]'")


def suggest(name: str, known: Iterable[str]) -> str:
    """A clause for an error message: the nearest known name, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
