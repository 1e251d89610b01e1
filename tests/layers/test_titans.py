"""Titans against its definition: one token at a time, every inner gradient by autograd."""

import pytest
import torch
import torch.nn.functional as F
from support.plain import randomise
from torch import Tensor

from prism.layers import mixer_config
from prism.layers.titans import Titans
from prism.ops import delta_rule
from prism.ops.fastweight.titans import titans

DIM, HEADS = 12, 2


def build(**fields) -> Titans:
    return randomise(mixer_config("titans", heads=HEADS, **fields).build(DIM))  # type: ignore[return-value]


def answer(x: Tensor, weights: list[Tensor]) -> Tensor:
    x = x @ weights[0]
    for W in weights[1:]:
        x = F.gelu(x, approximate="tanh") @ W
    return x


def convolve(mixer: Titans, x: Tensor) -> Tensor:
    W = mixer.conv.weight.shape[1]
    seen = F.pad(x, (0, 0, W - 1, 0))
    return torch.stack([F.silu((seen[t : t + W].T * mixer.conv.weight).sum(-1)) for t in range(len(x))])


def one_head(mixer: Titans, x: Tensor, h: int) -> Tensor:
    """What one head reads for one sequence x [T, D], straight from the equations."""
    config, d = mixer.config, mixer.d
    qkv, _, *gates = (x @ mixer.project.weight.T).split(mixer.sizes, -1)
    q, k, v = convolve(mixer, qkv).view(-1, 3, HEADS, d)[:, :, h].unbind(1)
    gate = dict(zip(mixer.gates, (g[:, h].unsqueeze(-1) for g in gates), strict=True))
    M = [W[h] for W in mixer.start]
    Z, outputs, before = [torch.zeros_like(W) for W in M], [], M
    for t in range(len(x)):
        if t % config.chunk == 0:
            before = M
        theta = torch.sigmoid(gate["rate"][t]) / (2 * config.chunk)
        eta = torch.sigmoid(gate["momentum"][t]) if config.momentum else 0.0
        kept = torch.sigmoid(gate["forget"][t] + mixer.keep_bias[h]) if config.forget else 1.0
        loss = (answer(F.normalize(k[t], dim=-1), before) - v[t]).square().sum()
        gradients = torch.autograd.grad(loss, before, create_graph=True)
        Z = [eta * z - theta * g for z, g in zip(Z, gradients, strict=True)]
        M = [kept * m + z for m, z in zip(M, Z, strict=True)]
        outputs.append(answer(F.normalize(q[t], dim=-1), M))
    return torch.stack(outputs)


def definition(mixer: Titans, x: Tensor) -> Tensor:
    rows = [torch.stack([one_head(mixer, row, h) for h in range(HEADS)], -2) for row in x]
    gate = mixer.project(x).split(mixer.sizes, -1)[1]
    return mixer.out(mixer.read(torch.stack(rows), gate))


@pytest.mark.parametrize("memory", ["linear", "mlp"])
@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_the_chunk_form_equals_the_equations(memory: str, chunk: int) -> None:
    mixer, x = build(memory=memory, chunk=chunk), torch.randn(2, 11, DIM, dtype=torch.float64)
    torch.testing.assert_close(mixer(x)[0], definition(mixer, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("momentum", "forget"), [(False, True), (True, False), (False, False)])
def test_momentum_and_forgetting_can_be_left_out(momentum: bool, forget: bool) -> None:
    mixer = build(chunk=3, momentum=momentum, forget=forget)
    x = torch.randn(1, 8, DIM, dtype=torch.float64)
    torch.testing.assert_close(mixer(x)[0], definition(mixer, x), rtol=1e-10, atol=1e-10)
    mixer(x)[0].sum().backward()
    assert all(p.grad is not None for p in mixer.parameters())


@pytest.mark.parametrize("memory", ["linear", "mlp"])
@pytest.mark.parametrize("chunk", [1, 4])
def test_outer_gradients_pass_through_the_inner_updates(memory: str, chunk: int) -> None:
    mixer = build(memory=memory, chunk=chunk)
    x = torch.randn(1, 7, DIM, dtype=torch.float64, requires_grad=True)
    leaves = [x, *mixer.parameters()]
    ours = torch.autograd.grad(mixer(x)[0].square().sum(), leaves)
    theirs = torch.autograd.grad(definition(mixer, x).square().sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_without_momentum_and_forgetting_a_linear_memory_is_the_delta_rule_with_twice_the_rate() -> None:
    B, T, H, K = 2, 40, 3, 5
    q, k, v = torch.randn(3, B, T, H, K, dtype=torch.float64).unbind()
    k, rate = F.normalize(k, dim=-1), 0.5 * torch.rand(B, T, H, dtype=torch.float64)
    M = torch.randn(B, H, K, K, dtype=torch.float64)  # rows are inputs: Sᵀ
    place = torch.zeros(B, dtype=torch.long)
    o, state = titans(q, k, v, rate, None, None, (M, M, torch.zeros_like(M), place), chunk=1)
    expected, S = delta_rule(
        q, k, v, 2 * rate, initial_state=M.mT.contiguous(), output_final_state=True, backend="reference"
    )
    torch.testing.assert_close(o, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state[1].mT, S, rtol=1e-10, atol=1e-10)


def test_the_chunk_is_a_part_of_the_function() -> None:
    mixer, x = build(chunk=4), torch.randn(1, 9, DIM, dtype=torch.float64)
    serial = build(chunk=1)
    serial.load_state_dict(mixer.state_dict())
    assert (mixer(x)[0] - serial(x)[0]).abs().max() > 1e-4


def test_sequences_that_stopped_at_different_places_go_on_together() -> None:
    mixer = build(chunk=4)
    pieces = [torch.randn(1, length, DIM, dtype=torch.float64) for length in (1, 4, 6)]
    states = [mixer(piece)[1] for piece in pieces]
    together = tuple(torch.cat(parts) for parts in zip(*states, strict=True))
    later = torch.randn(3, 9, DIM, dtype=torch.float64)
    y, _ = mixer(later, together)
    for n, piece in enumerate(pieces):
        whole, _ = mixer(torch.cat([piece, later[n : n + 1]], 1))
        torch.testing.assert_close(y[n : n + 1], whole[:, piece.shape[1] :], rtol=1e-10, atol=1e-10)


def test_a_chunk_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        mixer_config("titans", chunk=0)
