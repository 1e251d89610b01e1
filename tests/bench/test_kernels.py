"""The counts of `prism bench kernels`."""

import pytest
import torch

from prism.bench.kernels import ANCHOR_TOKENS, BLOCK, CHUNK, anchor_bytes, delta_work, expanded_work, operand_bytes
from prism.cli import main


@pytest.mark.parametrize("size", [64, 96, 128])
@pytest.mark.parametrize("L", [2, 4])
def test_one_solve_for_all_directions_saves_a_quarter_of_the_flops(L: int, size: int) -> None:
    assert delta_work(L, size, size).flops <= 0.75 * expanded_work(L, size, size).flops
    assert delta_work(L, size, size).flops <= 0.75 * expanded_work(L, size, size, C=32).flops


@pytest.mark.parametrize("size", [64, 96, 128, 256])
@pytest.mark.parametrize("L", [1, 2, 4])
def test_the_forward_moves_little_more_than_operands_and_outputs_in_training_too(L: int, size: int) -> None:
    assert delta_work(L, size, size).bytes == operand_bytes(L, size, size)
    assert delta_work(L, size, size, kept=True).bytes <= 1.3 * operand_bytes(L, size, size)


def test_the_norm_in_the_convolutions_pass_spares_a_quarter_of_the_anchors_bytes() -> None:
    assert sum(anchor_bytes(fused=True)) <= 0.75 * sum(anchor_bytes(fused=False))


def test_the_counts_are_of_the_tiles_that_run() -> None:
    fused = pytest.importorskip("prism.ops.triton.fused", reason="pip install 'prism-sequence[gpu]'")
    assert fused.CONV_TOKENS * fused.CONV_STEPS == ANCHOR_TOKENS
    launch = pytest.importorskip("prism.ops.triton.delta.launch", reason="pip install 'prism-sequence[gpu]'")
    assert launch.CHUNK == CHUNK
    assert launch.tiles("forward_walk", 128, 128, torch.bfloat16).BV == BLOCK
    assert launch.span(128, 128, 1) * CHUNK == 128


def test_the_roofline_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "kernels"])
    assert "nothing measured" in capsys.readouterr().out
