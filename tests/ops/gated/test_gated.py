"""The recurrence with a decay per channel: every form against its definition, and its special cases."""

import inspect
import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prism.ops import delta_rule
from prism.ops.common import checks
from prism.ops.gated.rule import gated_rule, gated_rule_step

FORMS = ["chunk", "cpu"]
KINDS = ["plain", "value side", "erasing"]


def draw(
    kind: str,
    B: int,
    T: int,
    H: int,
    K: int,
    V: int,
    *,
    N: int | None = None,
    gates: str = "mixed",
    collinear: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Operands of every kind, as arguments by name."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    q, k, v = normal(B, T, H, V if kind == "value side" else K), normal(B, T, H, K), normal(B, T, H, V)
    if collinear:
        k = k[:, :, :1, :].mean(1, keepdim=True).expand(B, T, H, K).contiguous() if T else k
    u = torch.rand(B, T, H, K, generator=g, dtype=torch.float64)
    exponent = {"mixed": -8 * u**6, "tiny": -8 + 0 * u, "one": 0 * u, "usual": -0.05 * u}[gates]
    x = {"q": q, "k": k, "v": v, "log_alpha": exponent * math.log(10)}
    x["initial_state"] = normal(B if N is None else N, H, V, K)
    if kind == "erasing":
        x["find"] = F.normalize(k if collinear else normal(B, T, H, K), dim=-1)
        x["erase"] = x["find"] * torch.rand(B, T, H, K, generator=g, dtype=torch.float64)
    return {name: y.to(dtype) for name, y in x.items()}


def run(x: dict[str, Tensor], kind: str, backend: str, limits: list[int] | None = None) -> dict[str, Tensor]:
    """Outputs, the final state and all gradients of a random function of both."""
    x = {name: y.clone().requires_grad_() for name, y in x.items()}
    o, S = gated_rule(
        **x,
        side="value" if kind == "value side" else "key",
        scale=0.7,
        output_final_state=True,
        cu_seqlens=None if limits is None else torch.tensor(limits),
        backend=backend,
    )
    g = torch.Generator().manual_seed(1)
    w, W = (torch.randn(y.shape, generator=g, dtype=torch.float64).to(y.dtype) for y in (o, S))
    grads = torch.autograd.grad((o * w).sum() + (S * W).sum(), list(x.values()), materialize_grads=True)
    named = {f"gradient of {name}": y for name, y in zip(x, grads, strict=True)}
    return {"o": o.detach(), "final state": S.detach()} | named


def worst(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-300)) if a.numel() else 0.0


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, y in expected.items():
        assert found[name].shape == y.shape, name
        assert worst(found[name], y) < (1e-9 if name.startswith("gradient") else 1e-10), name


@pytest.mark.parametrize("backend", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(
    B=st.integers(1, 3),
    T=st.sampled_from([0, 1, 2, 5, 31, 63, 64, 65]),
    H=st.integers(1, 2),
    K=st.sampled_from([1, 3, 8, 17]),
    V=st.sampled_from([1, 2, 8, 19]),
    gates=st.sampled_from(["mixed", "tiny", "one", "usual"]),
    collinear=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_form_equals_the_definition(kind, backend, B, T, H, K, V, gates, collinear, seed) -> None:
    x = draw(kind, B, T, H, K, V, gates=gates, collinear=collinear, seed=seed)
    assert_same(run(x, kind, backend), run(x, kind, "reference"))


@pytest.mark.parametrize("backend", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(lengths=st.lists(st.sampled_from([0, 1, 3, 17, 64, 70]), max_size=4), seed=st.integers(0, 1000))
def test_packed_sequences_equal_separate_ones(kind, backend, lengths, seed) -> None:
    limits = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    x = draw(kind, 1, limits[-1], 2, 5, 4, N=len(lengths), seed=seed)
    packed = run(x, kind, backend, limits)
    assert_same(packed, run(x, kind, "reference", limits))
    for n, (a, b) in enumerate(pairwise(limits)):
        own = {name: y[n : n + 1] if name == "initial_state" else y[:, a:b] for name, y in x.items()}
        assert worst(packed["o"][:, a:b], run(own, kind, backend)["o"]) < 1e-10


@pytest.mark.parametrize("backend", ["reference", *FORMS])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(cut=st.integers(0, 100))
def test_splitting_a_sequence_anywhere_changes_nothing(kind, backend, cut) -> None:
    x = draw(kind, 2, 100, 2, 6, 5)
    side = "value" if kind == "value side" else "key"
    S, pieces = x.pop("initial_state"), []
    whole, last = gated_rule(**x, side=side, initial_state=S, output_final_state=True, backend=backend)
    for part in (slice(0, cut), slice(cut, 100)):
        own = {name: y[:, part] for name, y in x.items()}
        o, S = gated_rule(**own, side=side, initial_state=S, output_final_state=True, backend=backend)
        pieces.append(o)
    assert worst(torch.cat(pieces, 1), whole) < 1e-10
    assert worst(S, last) < 1e-10


@pytest.mark.parametrize("backend", FORMS)
@pytest.mark.parametrize("gates", ["mixed", "tiny", "one", "usual"])
@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_exact_to_rounding_over_long_sequences(kind, gates, backend) -> None:
    x = draw(kind, 1, 2048, 1, 32, 32, gates=gates)
    if gates == "one" and kind != "erasing":
        x["k"] = x["k"] / 32  # a sum that never decays
    exact = run(x, kind, "chunk")
    low = run({name: y.float() for name, y in x.items()}, kind, backend)
    for name, y in exact.items():
        error = (low[name].double() - y).square().mean().sqrt() / y.square().mean().sqrt()
        assert error < 1e-5, (name, float(error))


@pytest.mark.parametrize("backend", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_accumulates_in_float32(kind, backend) -> None:
    x = draw(kind, 1, 300, 2, 16, 16, gates="usual", dtype=torch.bfloat16)
    x["log_alpha"], x["initial_state"] = x["log_alpha"].float(), x["initial_state"].float()
    found = run(x, kind, backend)
    exact = run({name: y.double() for name, y in x.items()}, kind, "reference")
    assert found["o"].dtype == torch.bfloat16
    assert found["final state"].dtype == torch.float32
    assert worst(found["o"].double(), exact["o"]) < 5e-3
    assert worst(found["final state"].double(), exact["final state"]) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_changes_nothing(kind) -> None:
    x, threads = draw(kind, 3, 300, 3, 32, 32), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run(x, kind, "cpu")
        torch.set_num_threads(4)
        shared = run(x, kind, "cpu")
    finally:
        torch.set_num_threads(threads)
    for name, y in alone.items():
        assert torch.equal(shared[name], y), name


@pytest.mark.parametrize("backend", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_operands_may_be_views_in_any_order_of_memory(kind, backend) -> None:
    x = draw(kind, 2, 70, 2, 5, 4)
    views = {name: y.transpose(0, 1).contiguous().transpose(0, 1) for name, y in x.items()}
    assert not views["k"].is_contiguous()
    assert_same(run(views, kind, backend), run(x, kind, backend))


@pytest.mark.parametrize("kind", KINDS)
def test_the_step_repeated_equals_the_sequence(kind) -> None:
    x = draw(kind, 2, 20, 2, 6, 5)
    side = "value" if kind == "value side" else "key"
    S, steps = x.pop("initial_state"), []
    whole, last = gated_rule(**x, side=side, scale=0.7, initial_state=S, output_final_state=True)
    for t in range(20):
        o, S = gated_rule_step(**{name: y[:, t] for name, y in x.items()}, side=side, scale=0.7, state=S)
        steps.append(o)
    assert worst(torch.stack(steps, 1), whole) < 1e-10
    assert worst(S, last) < 1e-10


def test_constant_gates_give_a_retention_whose_weights_are_powers_of_the_decay() -> None:
    x = draw("plain", 1, 150, 1, 4, 3)
    del x["initial_state"]
    decay = torch.tensor([0.5, 0.9, 0.99, 1.0], dtype=torch.float64)
    o, _ = gated_rule(x["q"], x["k"], x["v"], decay.log().expand(1, 150, 1, 4), backend="chunk")
    t = torch.arange(150)
    apart = (t[:, None] - t).clamp_min(0)
    weights = torch.einsum("ic,jc,ijc->ij", x["q"][0, :, 0], x["k"][0, :, 0], decay ** apart[..., None])
    assert worst(o[0, :, 0], weights.tril() @ x["v"][0, :, 0]) < 1e-12


def test_one_decay_for_all_channels_and_one_direction_is_the_delta_rule() -> None:
    x = draw("erasing", 2, 100, 2, 6, 5)
    log_alpha, beta = x["log_alpha"][..., :1], torch.rand(2, 100, 2, 1, dtype=torch.float64)
    k = x["find"]
    o, S = gated_rule(
        x["q"],
        beta * k,
        x["v"],
        log_alpha.expand_as(k).contiguous(),
        find=log_alpha.exp() * k,
        erase=beta * k,
        initial_state=x["initial_state"],
        output_final_state=True,
        backend="chunk",
    )
    o_delta, S_delta = delta_rule(
        x["q"],
        k,
        x["v"],
        beta[..., 0],
        log_alpha[..., 0],
        initial_state=x["initial_state"],
        output_final_state=True,
        backend="reference",
    )
    assert worst(o, o_delta) < 1e-10
    assert worst(S, S_delta) < 1e-10


@pytest.mark.parametrize("backend", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_later_token_never_reaches_an_earlier_output(kind, backend) -> None:
    x = draw(kind, 1, 100, 1, 6, 5)
    before = run(x, kind, backend)["o"]
    for name in set(x) - {"initial_state", "log_alpha"}:
        x[name][:, 50:] *= 100
    after = run(x, kind, backend)["o"]
    assert torch.equal(before[:, :50], after[:, :50])
    assert (before[:, 50:] != after[:, 50:]).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"find": None}, "find and erase go together"),
        ({"side": "value"}, "side 'value'"),
        ({"side": "left"}, "side must be key or value, got 'left'"),
        ({"backend": "chunks"}, "unknown backend 'chunks'"),
        ({"log_alpha": torch.full((1, 4, 2, 3), 0.5, dtype=torch.float64)}, "log_alpha must not be positive"),
        ({"k": torch.zeros(1, 4, 2, 3)}, "k has dtype torch.float32"),
        ({"erase": torch.zeros(1, 4, 2, 2, dtype=torch.float64)}, r"erase must have shape .*K=3"),
        ({"v": torch.zeros(1, 5, 2, 3, dtype=torch.float64)}, r"v must have shape .*T=4"),
        ({"initial_state": torch.zeros(2, 2, 2, 3, dtype=torch.float64)}, "initial_state must have shape"),
        ({"cu_seqlens": torch.tensor([0, 3])}, "cu_seqlens must run from 0 to T = 4"),
    ],
)
def test_bad_arguments_are_refused_by_name(change, message) -> None:
    x = draw("erasing", 1, 4, 2, 3, 2) | change
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(gated_rule)(**x)


@pytest.fixture(autouse=True)
def _look_at_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_look", True)
