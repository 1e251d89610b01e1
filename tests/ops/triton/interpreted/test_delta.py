"""`delta_rule` with the backend `triton`, in the interpreter: float32 against the definition in float64."""

import pytest
import torch
from support.recurrence import EXTREMES, Case, draw, error_ratio, run

from prism.ops import delta_rule

TOLERANCE = 1e-5


def assert_near(case: Case) -> None:
    """Values and every gradient; both see the operands as float32 has them."""
    case = case.to(torch.float32)
    got, exact = run(case, "triton"), run(case.to(torch.float64), "chunk")
    for name, want in exact.items():
        assert got[name].shape == want.shape, name
        assert torch.isfinite(got[name]).all(), name
        if want.numel() and want.abs().max() > 0:
            assert error_ratio(got[name], want) <= TOLERANCE, f"{name}: {error_ratio(got[name], want):.1e}"


@pytest.mark.parametrize("T", [0, 1])
def test_the_shortest_sequences_equal_the_definition(T: int) -> None:
    assert_near(draw(2, T, 2, 2, 5, 7))


@pytest.mark.slow
@pytest.mark.parametrize("T", [31, 32, 33, 63, 64, 65])
@pytest.mark.parametrize("L", [1, 2])
def test_lengths_around_a_chunk_equal_the_definition(T: int, L: int) -> None:
    assert_near(draw(1, T, 2, L, 5, 7))


def test_packed_sequences_equal_the_definition() -> None:
    assert_near(draw(1, 44, 1, 2, 4, 37, limits=[0, 0, 3, 3, 36, 44]))


def test_three_directions_over_two_chunks_equal_the_definition() -> None:
    assert_near(draw(1, 37, 1, 3, 18, 5))


@pytest.mark.slow
@pytest.mark.parametrize(("L", "K", "V"), [(8, 3, 5), (1, 100, 20), (2, 130, 70), (2, 256, 40)])
def test_ranks_and_widths_equal_the_definition(L: int, K: int, V: int) -> None:
    assert_near(draw(1, 40, 1, L, K, V))


@pytest.mark.parametrize("extreme", ["all but forgotten", "one key repeated"])
def test_the_hardest_gates_and_keys_equal_the_definition(extreme: str) -> None:
    assert_near(EXTREMES[extreme](draw(1, 35, 1, 2, 6, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("L", [1, 3])
def test_extreme_gates_and_keys_equal_the_definition(extreme: str, L: int) -> None:
    assert_near(EXTREMES[extreme](draw(2, 70, 1, L, 6, 5)))


@pytest.mark.parametrize("cut", [1, 32])
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
    """Products round their operands to the dtype, sums are float32; chunks are of 64 tokens."""
    c = draw(1, 70, 1, 2, 16, 16).to(dtype)
    c = Case(*(x for x in c.tensors()[:-1]), initial_state=c.initial_state.float())
    got, want = run(c, "triton"), run(c.to(torch.float64), "chunk")
    assert got["o"].dtype == got["dk"].dtype == dtype
    assert got["final_state"].dtype == got["dinitial_state"].dtype == torch.float32
    for name in want:
        assert error_ratio(got[name], want[name]) <= tolerance, f"{name}: {error_ratio(got[name], want[name]):.1e}"
