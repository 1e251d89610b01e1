"""`delta_rule`: every backend against the definition, in values and in all gradients."""

import inspect
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.recurrence import EXTREMES, assert_same, draw, error_ratio, run

from prism.ops import delta_rule, delta_rule_step
from prism.ops.common import checks
from prism.ops.delta import chunk
from prism.ops.delta.operands import operands

BACKENDS = ["chunk", "cpu"]
sizes = st.integers(1, 9)


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    B=st.integers(1, 3),
    T=st.integers(0, 150),
    H=st.integers(1, 3),
    L=st.integers(1, 8),
    K=sizes,
    V=sizes,
    each=st.booleans(),
)
def test_any_shape_equals_the_definition(
    backend: str, B: int, T: int, H: int, L: int, K: int, V: int, each: bool
) -> None:
    case = draw(B, T, H, L, K, V, each=each)
    assert_same(run(case, backend), run(case, "reference"), 1e-10, 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("T", [0, 1, 63, 64, 65])
@pytest.mark.parametrize(("L", "each"), [(1, False), (2, False), (2, True), (3, True)])
def test_lengths_around_a_chunk_equal_the_definition(backend: str, T: int, L: int, each: bool) -> None:
    case = draw(2, T, 2, L, 5, 7, each=each)
    assert_same(run(case, backend), run(case, "reference"), 1e-10, 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@given(lengths=st.lists(st.integers(0, 90), min_size=1, max_size=6), L=st.integers(1, 3), each=st.booleans())
def test_packed_sequences_equal_the_definition(backend: str, lengths: list[int], L: int, each: bool) -> None:
    limits = torch.tensor([0, *lengths]).cumsum(0).tolist()
    case = draw(1, limits[-1], 2, L, 4, 3, limits=limits, each=each)
    assert_same(run(case, backend), run(case, "reference"), 1e-10, 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize(("L", "each"), [(1, False), (3, False), (3, True)])
def test_extreme_gates_and_keys_equal_the_definition(backend: str, extreme: str, L: int, each: bool) -> None:
    case = EXTREMES[extreme](draw(2, 130, 2, L, 6, 5, each=each))
    assert_same(run(case, backend), run(case, "reference"), 1e-10, 1e-9)


@given(C=st.integers(1, 80), T=st.integers(1, 130), L=st.integers(1, 3), packed=st.booleans(), each=st.booleans())
def test_the_chunk_size_changes_nothing(C: int, T: int, L: int, packed: bool, each: bool) -> None:
    case = draw(1, T, 2, L, 4, 5, limits=[0, T // 3, T] if packed else None, each=each)
    x = operands(
        case.q,
        case.k,
        case.v,
        case.beta,
        case.log_alpha,
        erase=case.erase,
        scale=case.scale,
        initial_state=case.initial_state,
        cu_seqlens=case.cu_seqlens,
    )
    got = dict(zip(("o", "final_state"), chunk.forward(x, chunk_size=C), strict=True))
    want = {name: y for name, y in run(case, "reference").items() if name in got}
    assert_same(got, want, 1e-10, 1e-9)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@given(T=st.integers(1, 140), cut=st.integers(0, 140), L=st.integers(1, 3), each=st.booleans())
def test_splitting_a_sequence_anywhere_changes_nothing(backend: str, T: int, cut: int, L: int, each: bool) -> None:
    c, cut = draw(2, T, 2, L, 4, 5, each=each), min(cut, T)
    tokens = (c.q, c.k, c.v, c.beta, c.log_alpha, c.erase)
    state, pieces = c.initial_state, []
    for part in (slice(0, cut), slice(cut, T)):
        q, k, v, beta, log_alpha, erase = (x[:, part] for x in tokens)
        o, state = delta_rule(
            q, k, v, beta, log_alpha, erase=erase, scale=c.scale, initial_state=state,
            output_final_state=True, backend=backend,
        )  # fmt: skip
        pieces.append(o)
    want = {name: y for name, y in run(c, "reference").items() if name in ("o", "final_state")}
    assert_same({"o": torch.cat(pieces, 1), "final_state": state}, want, 1e-10, 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("extreme", ["as drawn", *EXTREMES])
@pytest.mark.parametrize("each", [False, True])
def test_float32_stays_near_float64_over_4096_tokens(backend: str, extreme: str, each: bool) -> None:
    case = draw(1, 4096, 2, 2, 32, 32, each=each)
    if each and extreme == "as drawn":  # ε up to 2 on any two directions may grow without bound: within 1 it cannot
        case = replace(case, erase=case.erase / 2)
    case = case if extreme == "as drawn" else EXTREMES[extreme](case)
    case = case.to(torch.float32)  # both see the operands as float32 has them
    exact, got = run(case.to(torch.float64), "chunk"), run(case, backend)
    for name, want in exact.items():
        assert torch.isfinite(got[name]).all(), name
        if want.abs().max() > 0:
            assert error_ratio(got[name], want) <= 1e-5, f"{name}: {error_ratio(got[name], want):.1e}"


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_bfloat16_is_accumulated_in_float32(backend: str) -> None:
    case = draw(1, 200, 2, 2, 16, 16).to(torch.bfloat16)
    wide = case.to(torch.float32)
    o, S = delta_rule(case.q, case.k, case.v, case.beta, case.log_alpha, output_final_state=True, backend=backend)
    exact, exact_S = delta_rule(
        wide.q, wide.k, wide.v, wide.beta, wide.log_alpha, output_final_state=True, backend="reference"
    )
    assert o.dtype == torch.bfloat16
    assert S is not None
    assert S.dtype == torch.float32
    assert error_ratio(S, exact_S) < 1e-5
    assert error_ratio(o, exact) < 4e-3  # the rounding of the output alone


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_optional_arguments_have_the_meaning_that_is_documented(backend: str) -> None:
    c = draw(2, 70, 2, 1, 4, 5)
    short = (c.q, c.k[:, :, :, 0], c.v[:, :, :, 0], c.beta[..., 0])
    plain, none = delta_rule(*short, backend=backend)
    spelt, state = delta_rule(
        c.q, c.k, c.v, c.beta, torch.zeros_like(c.log_alpha), erase=c.beta[..., 0], scale=1.0,
        initial_state=torch.zeros_like(c.initial_state), output_final_state=True, backend=backend,
    )  # fmt: skip
    assert none is None
    assert state is not None
    torch.testing.assert_close(plain, spelt, rtol=0, atol=1e-12)


@pytest.mark.parametrize("each", [False, True])
def test_one_step_equals_a_sequence_of_one_token(each: bool) -> None:
    c = draw(3, 1, 2, 2, 4, 5, each=each)
    o, S = delta_rule_step(
        c.q[:, 0], c.k[:, 0], c.v[:, 0], c.beta[:, 0], c.log_alpha[:, 0], erase=c.erase[:, 0],
        scale=c.scale, state=c.initial_state,
    )  # fmt: skip
    want = run(c, "reference")
    assert_same({"o": o.unsqueeze(1), "final_state": S}, {k: want[k] for k in ("o", "final_state")}, 1e-12, 0)


def test_a_step_in_place_overwrites_the_state_it_is_given_and_nothing_else_does() -> None:
    c = draw(3, 1, 2, 2, 4, 5)
    given = {"q": c.q[:, 0], "k": c.k[:, 0], "v": c.v[:, 0], "beta": c.beta[:, 0], "log_alpha": c.log_alpha[:, 0]}
    kept = c.initial_state.clone()
    o, S = delta_rule_step(**given, state=c.initial_state)
    assert torch.equal(c.initial_state, kept)
    again, same = delta_rule_step(**given, state=c.initial_state, in_place=True)
    assert same is c.initial_state
    assert torch.equal(again, o)
    assert torch.equal(same, S)
    with pytest.raises(ValueError, match="in_place needs a state to overwrite"):
        delta_rule_step(**given, in_place=True)
    with pytest.raises(ValueError, match="in_place overwrites a state that the gradient needs"):
        delta_rule_step(**given | {"q": c.q[:, 0].clone().requires_grad_()}, state=kept, in_place=True)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_erasing_along_each_direction_is_the_rank_one_rule_over_l_times_the_tokens(backend: str) -> None:
    """DeltaProduct's reading: each direction a token of its own, which only the first of them decays."""
    c, L = draw(2, 40, 2, 3, 4, 5, each=True), 3
    got, _ = delta_rule(c.q, c.k, c.v, c.beta, c.log_alpha, erase=c.erase, backend=backend)
    decay = torch.stack([c.log_alpha, *[torch.zeros_like(c.log_alpha)] * (L - 1)], 2).flatten(1, 2)
    k, v = (x.transpose(2, 3).flatten(1, 2) for x in (c.k, c.v))
    beta, erase = (x.transpose(2, 3).flatten(1, 2) for x in (c.beta, c.erase))
    want, _ = delta_rule(c.q.repeat_interleave(L, 1), k, v, beta, decay, erase=erase, backend="reference")
    torch.testing.assert_close(got, want[:, L - 1 :: L], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_no_erasure_along_later_directions_is_the_erasure_along_the_first(backend: str) -> None:
    c = draw(2, 70, 2, 3, 4, 5)
    alone = torch.cat([c.erase[..., None], c.beta.new_zeros(2, 70, 2, 2)], -1)
    got, want = (run(case, backend)["o"] for case in (replace(c, erase=alone), c))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_reach_only_what_asks_for_them(backend: str) -> None:
    c = draw(1, 80, 1, 2, 4, 4)
    v = c.v.clone().requires_grad_()
    o, _ = delta_rule(c.q, c.k, v, c.beta, c.log_alpha, backend=backend)
    o.sum().backward()
    assert v.grad is not None


def test_a_long_sequence_costs_in_proportion_to_its_length() -> None:
    """A backward through an indexed loop would be quadratic; counted here in saved memory, not in time."""

    def saved(T: int) -> int:
        case, held = draw(1, T, 1, 2, 8, 8), []
        x = case.q.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t.numel()) or t, lambda t: t):
            delta_rule(x, case.k, case.v, case.beta, case.log_alpha, backend="chunk")
        return sum(held)

    assert saved(4096) <= 4.2 * saved(1024)


c = draw(2, 6, 3, 2, 4, 5)
args = (c.q, c.k, c.v, c.beta)
BAD = [
    (lambda f: f(c.q[0], c.k, c.v, c.beta), ValueError, ["q ", "[6, 3, 4]"]),
    (lambda f: f(c.q, c.k[:, :, :2], c.v, c.beta), ValueError, ["k ", "H=3", "[2, 6, 2, 2, 4]"]),
    (lambda f: f(c.q, c.k, c.v[:, :, :, :1], c.beta), ValueError, ["v ", "L=2", "[2, 6, 3, 1, 5]"]),
    (lambda f: f(c.q, c.k[..., 0, :], c.v, c.beta), ValueError, ["L axis", "v [2, 6, 3, 2, 5]"]),
    (lambda f: f(c.q, c.k, c.v, c.beta[..., 0]), ValueError, ["beta", "[2, 6, 3]"]),
    (lambda f: f(*args, c.log_alpha[..., :1]), ValueError, ["log_alpha", "[2, 6, 1]"]),
    (lambda f: f(*args, erase=c.erase[:1]), ValueError, ["erase", "[1, 6, 3]"]),
    (lambda f: f(*args, erase=c.beta[..., :1]), ValueError, ["erase", "L=2", "[2, 6, 3, 1]"]),
    (lambda f: f(c.q, c.k.float(), c.v, c.beta), ValueError, ["k ", "float32", "float64"]),
    (lambda f: f(c.q, c.k, c.v.to("meta"), c.beta), ValueError, ["v ", "meta", "cpu"]),
    (lambda f: f(*args, -c.log_alpha), ValueError, ["log_alpha", "positive"]),
    (lambda f: f(*args, initial_state=c.initial_state[:1]), ValueError, ["initial_state", "[1, 3, 5, 4]"]),
    (lambda f: f(*args, cu_seqlens=torch.tensor([0, 6])), ValueError, ["cu_seqlens", "B = 2"]),
    (lambda f: f(*(x[:1] for x in args), cu_seqlens=torch.tensor([0, 4, 3, 6])), ValueError, ["4", "3"]),
    (lambda f: f(*(x[:1] for x in args), cu_seqlens=torch.tensor([0, 5])), ValueError, ["T = 6", "5"]),
    (lambda f: f(*(x[:1] for x in args), cu_seqlens=torch.tensor([0.0, 6])), ValueError, ["cu_seqlens"]),
    (lambda f: f(*args, backend="chunks"), ValueError, ["'chunks'", "did you mean 'chunk'"]),
    (lambda f: f(*args, earse=c.erase), TypeError, ["earse"]),
    (lambda f: f(c.q, c.k, c.v, 0.5), TypeError, ["beta", "float"]),
    (lambda f: f(c.q.long(), c.k, c.v, c.beta), ValueError, ["q ", "int64"]),
]


@pytest.mark.parametrize(("call", "error", "names"), BAD)
def test_bad_input_is_refused_by_name(call, error: type[Exception], names: list[str]) -> None:
    with pytest.raises(error, match=r".") as caught:
        call(inspect.unwrap(delta_rule))  # without the shape checks that tests add
    for name in names:
        assert name in str(caught.value)


@pytest.fixture(autouse=True)
def _look_at_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_look", True)
