"""A memory whose weights are the state, y = f(x W_1) W_2 …, and its dual form over a mini-batch of tokens.

The weights that token t reads with are sums of the weights at hand and of the mini-batch's gradients X_jᵀ G_j:

    W_t = keep_t W + carry_t D + Σ_j mix_tj X_jᵀ G_j
    x W_t = keep_t x W + carry_t x D + Σ_j mix_tj (x·X_j) G_j

so that no W_t is ever made. A memory with biases has them as the last row of each W, and 1 as the last of each x.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Layers = tuple[Tensor, ...]


class Mix(NamedTuple):
    """How the weights of each token are summed; None for keep: 1, for carry: 0."""

    mix: Tensor  # [n, C, C], lower triangular
    keep: Tensor | None = None  # [n, C, 1]
    carry: Tensor | None = None  # [n, C, 1]


def with_one(x: Tensor, biases: bool) -> Tensor:
    """x, and after it the 1 that meets the row of biases."""
    return F.pad(x, (0, 1), value=1.0) if biases else x


def _respond(z: Tensor, biases: bool) -> Tensor:
    return with_one(F.gelu(z, approximate="tanh"), biases)


def remember(x: Tensor, W: Layers, biases: bool) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs X_l and the products Z_l = X_l W_l of every layer; the last product is the answer."""
    X, Z = [x], [x @ W[0]]
    for W_l in W[1:]:
        X.append(_respond(Z[-1], biases))
        Z.append(X[-1] @ W_l)
    return X, Z


def backward(G: Tensor, W: Layers, Z: list[Tensor], biases: bool) -> list[Tensor]:
    """∂loss/∂Z_l of every layer from that of the last, G."""
    grads = [G]
    for W_l, z in zip(W[:0:-1], Z[-2::-1], strict=True):
        rows = W_l[:, :-1] if biases else W_l
        grads.insert(0, torch.ops.aten.gelu_backward(grads[0] @ rows.mT, z, approximate="tanh"))
    return grads


def read(x: Tensor, W: Layers, D: Layers, X: list[Tensor], G: list[Tensor], how: Mix, biases: bool) -> Tensor:
    """The answer to each row of x with that row's own weights."""
    z = x
    for l, (W_l, D_l, X_l, G_l) in enumerate(zip(W, D, X, G, strict=True)):
        x = _respond(z, biases) if l else x
        z = x @ W_l
        if how.keep is not None:
            z = how.keep * z
        if how.carry is not None:
            z = torch.addcmul(z, how.carry, x @ D_l)
        z = torch.baddbmm(z, how.mix * (x @ X_l.mT), G_l)
    return z
