"""For a loss that draws items: those that the experts name for each token, and what they say of its target.

An item that an expert thinks likely is too rarely drawn to be left to chance; it is always counted.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from prism.ops.additions import Additions
from prism.ops.cpu.compiling import loop
from prism.recommend.model.experts.entries import ENTRIES, OWN

# Items named for each token at most.
NAMED = 48


class Named(NamedTuple):
    """Of each token of a batch."""

    items: Tensor
    """[tokens, NAMED]: -1 where there are fewer."""
    features: Tensor
    """[tokens, NAMED, ENTRIES]"""
    of_target: Tensor
    """[tokens, ENTRIES]"""


def named(added: Additions, targets: Tensor, items: int, most: int = NAMED) -> Named:
    """The items with the largest sums of features, among a token's entries."""
    count = len(targets)
    found = np.full((count, most), -1, dtype=np.int64)
    features = np.zeros((count, most, ENTRIES), dtype=np.float32)
    of_target = np.zeros((count, ENTRIES), dtype=np.float32)
    entries = (part.numpy() for part in (added.starts, added.items, added.kinds, added.values))
    _name(*entries, targets.numpy(), np.zeros(items), np.zeros(items, dtype=np.int32), found, features, of_target)
    return Named(*(torch.from_numpy(part) for part in (found, features, of_target)))


@loop
def _name(starts, items, kinds, values, targets, sums, places, found, features, of_target):  # type: ignore[no-untyped-def]
    """`sums` is zero before and after; `places` is scratch."""
    most = found.shape[1]
    for t in range(len(targets)):
        low, high = starts[t], starts[t + 1]
        touched = np.empty(high - low, dtype=np.int32)
        size = 0
        for n in range(low, high):
            if kinds[n] != OWN:
                if sums[items[n]] == 0:
                    touched[size] = items[n]
                    size += 1
                sums[items[n]] += values[n]
        touched = touched[:size]
        order = np.argsort(-sums[touched], kind="mergesort")[:most]
        places[touched] = -1
        for s in range(len(order)):
            found[t, s] = touched[order[s]]
            places[touched[order[s]]] = s
        for n in range(low, high):
            i = items[n]
            if sums[i] > 0 and places[i] >= 0:
                features[t, places[i], kinds[n]] = values[n]
            if i == targets[t]:
                of_target[t, kinds[n]] = values[n]
        sums[touched] = 0
