"""`delta_rule` with the backend `triton`, in the interpreter: float32 against the definition in float64."""

import pytest
import torch
from support.recurrence import EXTREMES, Case, draw, error_ratio, run

from prism.ops import delta_rule
from prism.ops.delta.definition import one_token
from prism.ops.delta.operands import Operands, operands

TOLERANCE = 1e-5
step = pytest.importorskip("prism.ops.triton.delta.step").step


def assert_near(case: Case) -> None:
    """Values and every gradient; both see the operands as float32 has them."""
    case = case.to(torch.float32)
    got, exact = run(case, "triton"), run(case.to(torch.float64), "reference")
    for name, want in exact.items():
        assert got[name].shape == want.shape, name
        assert torch.isfinite(got[name]).all(), name
        if want.numel() and want.abs().max() > 0:
            assert error_ratio(got[name], want) <= TOLERANCE, f"{name}: {error_ratio(got[name], want):.1e}"


@pytest.mark.parametrize("T", [0, 1])
def test_the_shortest_sequences_equal_the_definition(T: int) -> None:
    assert_near(draw(2, T, 2, 2, 5, 7))


@pytest.mark.slow
@pytest.mark.parametrize("T", [0, 1, 15, 16, 17, 63, 64, 65, 129])
@pytest.mark.parametrize(("L", "each"), [(1, False), (2, False), (2, True), (3, True)])
def test_lengths_around_a_chunk_equal_the_definition(T: int, L: int, each: bool) -> None:
    assert_near(draw(1, T, 1, L, 5, 7, each=each))


def test_an_erasure_for_each_direction_equals_the_definition() -> None:
    """Three directions: chunks begin and end inside tokens."""
    assert_near(draw(1, 19, 1, 3, 6, 5, each=True))


def test_states_between_those_kept_are_found_again() -> None:
    """Nine chunks: the second span has one."""
    assert_near(draw(1, 130, 1, 1, 4, 3))


@pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_packed_sequences_equal_the_definition(each: bool) -> None:
    assert_near(draw(1, 44, 1, 2, 4, 37, limits=[0, 0, 3, 3, 36, 44], each=each))


@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True])
def test_packed_sequences_of_several_spans_equal_the_definition(each: bool) -> None:
    assert_near(draw(1, 300, 1, 2, 4, 5, limits=[0, 140, 141, 300], each=each))


def test_three_directions_over_two_chunks_equal_the_definition() -> None:
    assert_near(draw(1, 37, 1, 3, 18, 5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("L", "K", "V"),
    [(4, 7, 3), (5, 3, 4), (6, 4, 3), (7, 3, 3), (8, 3, 5), (1, 100, 20), (2, 130, 70), (2, 256, 40), (1, 20, 256)],
)
def test_ranks_and_widths_equal_the_definition(L: int, K: int, V: int) -> None:
    assert_near(draw(1, 40, 1, L, K, V))


@pytest.mark.parametrize("extreme", ["all but forgotten", "one key repeated"])
def test_the_hardest_gates_and_keys_equal_the_definition(extreme: str) -> None:
    assert_near(EXTREMES[extreme](draw(1, 35, 1, 2, 6, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize(("L", "each"), [(1, False), (3, False), (3, True)])
def test_extreme_gates_and_keys_equal_the_definition(extreme: str, L: int, each: bool) -> None:
    assert_near(EXTREMES[extreme](draw(2, 70, 1, L, 6, 5, each=each)))


@pytest.mark.parametrize("cut", [1, 16])
def test_splitting_a_sequence_changes_nothing(cut: int) -> None:
    c = draw(1, 36, 1, 2, 4, 5).to(torch.float32)
    tokens, state, pieces = (c.q, c.k, c.v, c.beta, c.log_alpha, c.erase), c.initial_state, []
    for part in (slice(0, cut), slice(cut, 36)):
        q, k, v, beta, log_alpha, erase = (x[:, part] for x in tokens)
        given = {"erase": erase, "scale": c.scale, "initial_state": state, "output_final_state": True}
        o, state = delta_rule(q, k, v, beta, log_alpha, **given, backend="triton")
        pieces.append(o)
    want = run(c.to(torch.float64), "reference")
    assert error_ratio(torch.cat(pieces, 1), want["o"]) <= TOLERANCE
    assert error_ratio(state, want["final_state"]) <= TOLERANCE


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_half_precision_operands_keep_a_float32_state(dtype: torch.dtype, tolerance: float) -> None:
    """Products round their operands to the dtype, sums are float32."""
    c = draw(1, 40, 1, 2, 16, 16).to(dtype)
    c = Case(*(x for x in c.tensors()[:-1]), initial_state=c.initial_state.float())
    got, want = run(c, "triton"), run(c.to(torch.float64), "reference")
    assert got["o"].dtype == got["dk"].dtype == dtype
    assert got["final_state"].dtype == got["dinitial_state"].dtype == torch.float32
    for name in want:
        assert error_ratio(got[name], want[name]) <= tolerance, f"{name}: {error_ratio(got[name], want[name]):.1e}"


@pytest.mark.parametrize(("L", "each"), [(1, False), (3, False), (3, True)])
def test_a_fused_step_equals_the_definition_and_overwrites_its_state_where_asked(L: int, each: bool) -> None:
    c = draw(3, 1, 2, L, 18, 37, each=each).to(torch.float32)
    x = operands(c.q, c.k, c.v, c.beta, c.log_alpha, erase=c.erase, scale=c.scale, initial_state=c.initial_state)
    wide = c.to(torch.float64)
    given = (wide.q, wide.k, wide.v, wide.beta, wide.log_alpha, wide.erase, wide.initial_state, c.scale, None)
    want = one_token(Operands(*given), 0, wide.initial_state)
    kept = c.initial_state.clone()
    for in_place in (False, True):
        o, S = step(x, in_place=in_place)
        assert (S.data_ptr() == c.initial_state.data_ptr()) == in_place
        assert torch.equal(c.initial_state, kept) != in_place
        assert error_ratio(o, want[0]) <= 1e-6
        assert error_ratio(S, want[1]) <= 1e-6
