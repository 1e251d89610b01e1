"""Initialisation, in this one place: weights of linear maps, embeddings and short convolutions.

Everything else (norm scales, decay rates, gain biases) is made with its final value where it is declared, and
nothing touches it again.
"""

import torch
from torch import nn

from prism.layers.base.parts import LinearEach, ShortConv

# Weight of a token's predecessors in a short convolution at first; the token's own is 1.
NEIGHBOUR_WEIGHT = 0.2


def initialise(module: nn.Module) -> None:
    """Draws every weight so that inputs of unit variance give about unit variance; linear biases are zero."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, LinearEach):
            nn.init.normal_(part.weight, std=part.weight.shape[2] ** -0.5)
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=part.embedding_dim**-0.5)
        elif isinstance(part, ShortConv) and part.start == "random":
            nn.init.uniform_(part.weight, -(part.weight.shape[1] ** -0.5), part.weight.shape[1] ** -0.5)
        elif isinstance(part, ShortConv):
            # near the identity: with taps all alike a token drowns in its predecessors, and recall is learned late
            nn.init.normal_(part.weight, std=NEIGHBOUR_WEIGHT)
            with torch.no_grad():
                part.weight[:, -1] += 1


def scale_writer(out: nn.Linear, writers: int) -> None:
    """Scales a map that writes to the residual stream, so that `writers` of them together add unit variance."""
    nn.init.normal_(out.weight, std=(out.in_features * writers) ** -0.5)
