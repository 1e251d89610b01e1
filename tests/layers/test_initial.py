"""How weights begin."""

import torch

from prism.layers.base.initial import initialise
from prism.layers.base.parts import ShortConv


def test_a_short_convolution_begins_near_the_identity() -> None:
    torch.manual_seed(0)
    conv = ShortConv(256, 5)
    initialise(conv)
    x = torch.randn(4, 64, 256)
    seen = torch.nn.functional.silu(x)
    found, _ = conv(x, None, None)
    alike = torch.corrcoef(torch.stack([found.flatten(), seen.flatten()]))[0, 1]
    assert 0.85 < alike < 0.99  # the token itself, and a little of its predecessors
    assert (found[:, 1:] - seen[:, 1:]).std() > 1.5 * (found[:, :1] - seen[:, :1]).std() > 0
