"""TTT against its definition: one token at a time, every inner gradient by autograd."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from prism.layers import mixer_config
from prism.layers.ttt import TTT

DIM, HEADS = 12, 2


def build(name: str, mini_batch: int, **fields) -> TTT:
    mixer = mixer_config(name, heads=HEADS, mini_batch=mini_batch, **fields).build(DIM).double()
    with torch.no_grad():  # away from zeros and ones, where a mistake could hide
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mixer


def tokens(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def inner_model(x: Tensor, weights: list[Tensor]) -> Tensor:
    """x W + c, and for each further layer gelu(·) W + c; biases are the last rows."""
    x = x @ weights[0][:-1] + weights[0][-1]
    for W in weights[1:]:
        x = F.gelu(x, approximate="tanh") @ W[:-1] + W[-1]
    return x


def rotate(x: Tensor, place: int) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.empty_like(x)
    for i in range(half):
        angle = torch.tensor(place * 10000 ** (-i / half), dtype=torch.float64)
        turned[i] = x[i] * angle.cos() - x[i + half] * angle.sin()
        turned[i + half] = x[i] * angle.sin() + x[i + half] * angle.cos()
    return turned


def one_head(mixer: TTT, x: Tensor, h: int) -> Tensor:
    """The outputs of one head for one sequence x [T, D], straight from the equations."""
    d, b = mixer.d, mixer.config.mini_batch
    q, k, v = (x @ mixer.project.weight.T).view(-1, 3, HEADS, d)[:, :, h].unbind(1)
    rate = mixer.base_rate * torch.sigmoid(x @ mixer.rate.weight[h] + mixer.rate.bias[h]) / d

    def norm(z: Tensor) -> Tensor:
        return F.layer_norm(z, (d,), mixer.norm_weight[h], mixer.norm_bias[h], eps=1e-6)

    weights = [W[h] for W in mixer.start]
    gradients, outputs = [torch.zeros_like(W) for W in weights], []
    for t in range(len(x)):
        place = t % b
        q_t, k_t = rotate(q[t], place), rotate(k[t], place)
        loss = 0.5 * (norm(inner_model(k_t, weights)) - (v[t] - k_t)).square().sum()
        new = torch.autograd.grad(loss, weights, create_graph=True)
        gradients = [g + rate[t] * n for g, n in zip(gradients, new, strict=True)]
        a = torch.clamp(1 / (place + 1) + mixer.token_rate[place], min=0)
        now = [W - a * g for W, g in zip(weights, gradients, strict=True)]
        outputs.append(q_t + norm(inner_model(q_t, now)))
        if place == b - 1:
            weights, gradients = now, [torch.zeros_like(W) for W in weights]
    return torch.stack(outputs)


def definition(mixer: TTT, x: Tensor) -> Tensor:
    rows = [torch.cat([one_head(mixer, row, h) for h in range(HEADS)], -1) for row in x]
    return mixer.out(mixer.read(torch.stack(rows)))


@pytest.mark.parametrize("name", ["ttt-linear", "ttt-mlp"])
@pytest.mark.parametrize("mini_batch", [1, 4, 16])
def test_the_dual_form_equals_gradient_descent_on_the_inner_loss(name: str, mini_batch: int) -> None:
    mixer, x = build(name, mini_batch), tokens(2, 11)
    torch.testing.assert_close(mixer(x)[0], definition(mixer, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["ttt-linear", "ttt-mlp"])
@pytest.mark.parametrize("mini_batch", [1, 4])
def test_outer_gradients_pass_through_the_inner_updates(name: str, mini_batch: int) -> None:
    mixer, x = build(name, mini_batch), tokens(1, 7).requires_grad_()
    leaves = [x, *mixer.parameters()]
    ours = torch.autograd.grad(mixer(x)[0].square().sum(), leaves)
    theirs = torch.autograd.grad(definition(mixer, x).square().sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_loops_too_long_to_be_kept_whole_have_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer, x = build("ttt-mlp", 2), tokens(1, 23).requires_grad_()
    limits = torch.tensor([0, 4, 4, 20, 23])
    gradients = []
    state_bytes = 8 * 4 * sum(part.numel() for part in mixer(x[:, :0])[1][:-1])
    for kept in (2**25, 3 * state_bytes, 0):  # in one piece, three turns at a time, one turn at a time
        monkeypatch.setattr("prism.ops.fastweight.walk.KEPT", kept)
        y, state = mixer(x, cu_seqlens=limits)
        loss = y.square().sum() + sum(part.square().sum() for part in state[:-1])
        gradients.append(torch.autograd.grad(loss, [x, *mixer.parameters()]))
    for whole, *others in zip(*gradients, strict=True):
        for other in others:
            torch.testing.assert_close(other, whole, rtol=1e-12, atol=1e-12)


def test_sequences_that_stopped_at_different_places_go_on_together() -> None:
    mixer, pieces = build("ttt-mlp", 4), [tokens(1, length) for length in (1, 4, 6)]
    states = [mixer(piece)[1] for piece in pieces]
    together = tuple(torch.cat(parts) for parts in zip(*states, strict=True))
    later = tokens(3, 9)
    y, _ = mixer(later, together)
    for n, piece in enumerate(pieces):
        whole, _ = mixer(torch.cat([piece, later[n : n + 1]], 1))
        torch.testing.assert_close(y[n : n + 1], whole[:, piece.shape[1] :], rtol=1e-10, atol=1e-10)


def test_an_odd_head_width_cannot_be_rotated() -> None:
    with pytest.raises(ValueError, match="even head width"):
        mixer_config("ttt-linear", heads=4).build(DIM)
