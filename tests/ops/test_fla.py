"""The adapter to flash-linear-attention's signatures, against loops in its own layout: states [N, H, K, V]."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from prism.ops.fla import chunk_delta_rule, chunk_gated_delta_rule, chunk_gla, chunk_linear_attn

B, T, H, K, V = 2, 37, 2, 5, 7


def draw(heads: int = H, batch: int = B) -> tuple[Tensor, ...]:
    make = torch.Generator().manual_seed(4)
    q, k = torch.randn(2, batch, T, H, K, dtype=torch.float64, generator=make)
    v = torch.randn(batch, T, heads, V, dtype=torch.float64, generator=make)
    g = -torch.rand(batch, T, heads, dtype=torch.float64, generator=make)
    beta = torch.rand(batch, T, heads, dtype=torch.float64, generator=make)
    S = torch.randn(batch, heads, K, V, dtype=torch.float64, generator=make)
    return q, k, v, g, beta, S


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def gated_loop(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    groups, outputs = v.shape[2] // q.shape[2], []
    for t in range(q.shape[1]):
        k_t, q_t = (x[:, t].repeat_interleave(groups, 1) for x in (k, q))
        S = S * g[:, t].exp()[..., None, None]
        found = torch.einsum("nhkv,nhk->nhv", S, k_t)
        S = S + torch.einsum("nhk,nhv->nhkv", k_t, beta[:, t, :, None] * (v[:, t] - found))
        outputs.append(torch.einsum("nhkv,nhk->nhv", S, q_t) * K**-0.5)
    return torch.stack(outputs, 1), S


def close(found: tuple[Tensor, Tensor | None], wanted: tuple[Tensor, Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("heads", [H, 3 * H])
def test_the_gated_delta_rule_is_its_loop(heads: int) -> None:
    q, k, v, g, beta, S = draw(heads)
    found = chunk_gated_delta_rule(q, k, v, g, beta, None, S, True, True)
    close(found, gated_loop(unit(q), unit(k), v, g, beta, S))


def test_the_delta_rule_is_its_loop() -> None:
    q, k, v, g, beta, S = draw()
    close(chunk_delta_rule(q, 0.3 * k, v, beta, None, S, True), gated_loop(q, 0.3 * k, v, 0 * g, beta, S))


def test_packed_sequences_equal_separate_ones() -> None:
    q, k, v, g, beta, _ = draw(batch=1)
    limits = [0, 9, 9, T]
    o, S = chunk_gated_delta_rule(q, k, v, g, beta, None, None, True, True, torch.tensor(limits))
    for n, (a, b) in enumerate(pairwise(limits)):
        alone = chunk_gated_delta_rule(*(x[:, a:b] for x in (q, k, v, g, beta)), None, None, True, True)
        close(alone, (o[:, a:b], S[n : n + 1]))


def test_gated_linear_attention_and_linear_attention_are_their_loops() -> None:
    q, k, v, _, _, S = draw()
    g, q, k = -torch.rand_like(k), q.exp(), k.exp()
    start, sums, outputs, normal = S, torch.zeros_like(k[:, 0]), [], []
    plain = torch.zeros_like(S)
    for t in range(T):
        write = torch.einsum("nhk,nhv->nhkv", k[:, t], v[:, t])
        S, plain, sums = S * g[:, t].exp().unsqueeze(-1) + write, plain + write, sums + k[:, t]
        outputs.append(torch.einsum("nhkv,nhk->nhv", S, q[:, t]) * K**-0.5)
        normal.append(torch.einsum("nhkv,nhk->nhv", plain, q[:, t]) / (q[:, t] * sums).sum(-1, keepdim=True))
    close(chunk_gla(q, k, v, g, None, start, True), (torch.stack(outputs, 1), S))
    torch.testing.assert_close(chunk_linear_attn(q, k, v)[0], torch.stack(normal, 1), rtol=1e-8, atol=1e-9)
    with pytest.raises(ValueError, match="normalize"):
        chunk_linear_attn(q, k, v, initial_state=start)


def test_half_precision_operands_with_float32_gates_are_taken_as_they_are() -> None:
    q, k, v, g, beta, _ = draw()
    low = [x.bfloat16() for x in (q, k, v)]
    o, S = chunk_gated_delta_rule(*low, g.float(), beta.float(), output_final_state=True, use_qk_l2norm_in_kernel=True)
    assert (o.dtype, S.dtype) == (torch.bfloat16, torch.float32)
    exact, _ = chunk_gated_delta_rule(*(x.double() for x in low), g, beta, use_qk_l2norm_in_kernel=True)
    assert (o.double() - exact).norm() / exact.norm() < 0.01


def test_everything_may_have_half_precision() -> None:
    q, k, v, g, beta, S = draw()
    low = [x.bfloat16() for x in (q, k, v, g, beta)]
    o, _ = chunk_gated_delta_rule(*low, None, S.bfloat16(), use_qk_l2norm_in_kernel=True)
    wide, start = [x.double() for x in low], S.bfloat16().double()
    exact, _ = chunk_gated_delta_rule(*wide, None, start, use_qk_l2norm_in_kernel=True)
    assert (o.double() - exact).norm() / exact.norm() < 0.01


def test_the_adapter_differentiates_and_refuses_heads_that_do_not_divide() -> None:
    q, k, v, g, beta, S = (x.requires_grad_() for x in draw(2 * H))
    found = torch.autograd.grad(chunk_gated_delta_rule(q, unit(k), v, g, beta, None, S)[0].square().sum(), (q, v, S))
    wanted = torch.autograd.grad(gated_loop(q, unit(k), v, g, beta, S)[0].square().sum(), (q, v, S))
    close(found, wanted)
    with pytest.raises(ValueError, match="multiple of q's 2 heads, got 3"):
        chunk_gated_delta_rule(q, k, v[:, :, :3], g[:, :, :3], beta[:, :, :3])
