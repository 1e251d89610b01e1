"""Checks that configs share."""

import numpy as np
import pytest

from prism.config import count
from prism.errors import InputError


def test_a_count_is_a_whole_number() -> None:
    assert count("k", 3) == count("k", np.int64(3)) == 3
    for wrong in (0, 2.5, 2.0, True, "3", None):
        with pytest.raises(InputError, match=f"k must be a whole number of at least 1, got {wrong!r}"):
            count("k", wrong)
