"""A run's folder: one run at a time works in it, and of the processes of that run the first one writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prism.files import only_one


def is_first_process() -> bool:
    """Of processes that train together, as torchrun numbers them."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def own_folder(out: Path | None) -> Iterator[None]:
    """Closes a folder to other runs; None: nothing is kept."""
    if out is None or not is_first_process():
        yield
        return
    with only_one(out):
        yield
