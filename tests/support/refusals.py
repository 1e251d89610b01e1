"""What is refused is refused in one line that names it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prism.errors import InputError


def assert_refused(read: Callable[[Path], Any], path: Path, content: bytes, message: str) -> None:
    """`read` of a file with this content."""
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read(path)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
