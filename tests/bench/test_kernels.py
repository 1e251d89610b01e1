"""The counts of `prism bench kernels`."""

import pytest

from prism.bench.kernels import delta_work, expanded_work
from prism.cli import main


@pytest.mark.parametrize("size", [64, 96, 128])
@pytest.mark.parametrize("L", [2, 4])
def test_one_solve_for_all_directions_saves_a_quarter_of_the_flops(L: int, size: int) -> None:
    assert delta_work(L, size, size).flops <= 0.75 * expanded_work(L, size, size).flops
    assert delta_work(L, size, size).flops <= 0.75 * expanded_work(L, size, size, C=32).flops


def test_inference_moves_operands_and_outputs_once() -> None:
    L, K, V = 2, 128, 128
    operands = 2 * (K + L * K + L * V + L + V) + 2 * 4
    assert delta_work(L, K, V).bytes <= 1.3 * operands


def test_the_roofline_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "kernels"])
    assert "nothing measured" in capsys.readouterr().out
