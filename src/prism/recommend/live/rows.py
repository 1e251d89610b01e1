"""The input rows of a few live users' events, compiled: PyTorch's overhead is several times their arithmetic."""

import numpy as np

from prism.ops.cpu.compiling import kernel


@kernel
def embed(table, gaps, limits, scale, codes, since, until, x):  # type: ignore[no-untyped-def]
    """x[n] = (table[codes[n]] + the rows of both gaps) · scale; a table of gaps without rows adds nothing."""
    of_since, of_until = gaps
    for n in range(len(x)):
        code = codes[n]
        for i in range(x.shape[1]):
            x[n, i] = table[code, i]
        if len(of_since):
            bucket = np.searchsorted(limits, since[n], side="right")
            for i in range(x.shape[1]):
                x[n, i] += of_since[bucket, i]
        if len(of_until):
            bucket = np.searchsorted(limits, until[n], side="right")
            for i in range(x.shape[1]):
                x[n, i] += of_until[bucket, i]
        for i in range(x.shape[1]):
            x[n, i] *= scale
