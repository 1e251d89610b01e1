"""Run as a program, where no shape checker stops the tracer: a model compiled whole against itself, as one number."""

import sys

import torch
from support.recurrence import error_ratio

from prism.layers import MIXERS
from prism.models.backbone import BackboneConfig


def main(mixer: str) -> None:
    """Prints the largest error ratio of outputs, state and gradients."""
    torch.manual_seed(0)
    module = BackboneConfig(dim=8, layers=2, mixer=MIXERS[mixer].Config(heads=2)).build().double()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 20, 8, dtype=torch.float64, requires_grad=True)
    # not the sum of squares: behind the last norm it is a constant but for the norm's ε, and its gradients are what a
    # cancellation of six digits leaves
    weight = torch.randn(2, 20, 8, dtype=torch.float64)
    found = []
    for run in (module, compiled):
        y, state = run(x)
        grads = torch.autograd.grad((y * weight).sum() + state[0][-1].sum(), [x, *module.parameters()])
        found.append((y, state[0][-1], *grads))
    print(max(error_ratio(got, want) for want, got in zip(*found, strict=True)))


if __name__ == "__main__":
    main(sys.argv[1])
