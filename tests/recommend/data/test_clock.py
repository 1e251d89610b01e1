"""What is no time is refused in one line."""

import math

import numpy as np
import pandas as pd
import pytest

from prism.errors import InputError
from prism.recommend.data.clock import seconds


@pytest.mark.parametrize("moment", [pd.NaT, np.datetime64("NaT"), math.nan, math.inf, True])
def test_what_is_no_time_is_refused(moment: object) -> None:
    with pytest.raises(InputError, match="is not a time: give seconds since 1970, or a datetime"):
        seconds(moment)  # type: ignore[arg-type]


@pytest.mark.parametrize("moment", [2**64, -(2**70), 1_700_000_000_000])
def test_what_cannot_be_seconds_is_refused(moment: float) -> None:
    with pytest.raises(InputError, match="is not in seconds since 1970, as it should be: divide milliseconds by 1000"):
        seconds(moment)
