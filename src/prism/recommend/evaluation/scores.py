"""The scores of baselines: float32, one row per query, one column per candidate."""

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]
