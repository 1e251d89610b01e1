"""The experts' weights at one moment, compiled: c = out(SiLU(features x + context facts)), as in `model/mixture.py`."""

from typing import Any, NamedTuple

import numpy as np

from prism.ops.cpu.compiling import loop

# Where only items are asked for that are new to the user, a taken one is out of the question.
BARRED = -30.0


class GateWeights(NamedTuple):
    """The maps of `Gates`, [out, in] as PyTorch has them."""

    features: Any
    context: Any
    context_bias: Any
    out: Any
    out_bias: Any
    chosen: Any
    """[kinds]: whether the expert of a feature was chosen."""
    barred: bool


@loop
def weigh(x, facts, gates, found):  # type: ignore[no-untyped-def]
    """Fills found [kinds], what the experts' features are multiplied by, from features x [D] and facts [CONTEXT]."""
    hidden = np.empty(len(gates.context_bias), x.dtype)
    for h in range(len(hidden)):
        total = gates.context_bias[h]
        for i in range(len(x)):
            total += gates.features[h, i] * x[i]
        for i in range(len(facts)):
            total += gates.context[h, i] * facts[i]
        hidden[h] = total / (1 + np.exp(-total))
    for f in range(len(found)):
        total = gates.out_bias[f]
        for h in range(len(hidden)):
            total += gates.out[f, h] * hidden[h]
        found[f] = total if gates.chosen[f] else 0
    if gates.barred:
        found[0] = BARRED
