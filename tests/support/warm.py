"""Imported by the server that forks runs to be killed: everything imported and compiled, no thread started."""

import torch
from support import tiny

from prism.recommend.data.splits import split
from prism.recommend.recommender import Recommender

torch.set_num_threads(1)
Recommender.fit_split(split(tiny.log(), "leave-one-out"), tiny.CONFIG, None, progress=False)
