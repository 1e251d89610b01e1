"""Run as a program, where no shape checker stops the tracer: a mixer compiled whole against itself, as one number."""

import sys

import torch
from support.recurrence import error_ratio

from prism.layers import MIXERS


def main(mixer: str) -> None:
    """Prints the largest error ratio of outputs, state and gradient."""
    torch.manual_seed(0)
    module = MIXERS[mixer].Config(heads=2).build(8).double()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 20, 8, dtype=torch.float64, requires_grad=True)
    found = []
    for run in (module, compiled):
        y, state = run(x)
        (grad,) = torch.autograd.grad(y.square().sum() + state[-1].sum(), x)
        found.append((y, state[-1], grad))
    print(max(error_ratio(got, want) for want, got in zip(*found, strict=True)))


if __name__ == "__main__":
    main(sys.argv[1])
