"""`prism bench op --device cuda`, as far as it goes without one: what it measures, on the CPU, and what it says."""

import pytest
import torch

from prism.bench import gpu
from prism.cli import main


def test_every_system_is_measured_at_every_size_forwards_and_backwards() -> None:
    panels = gpu.measure((20, 40), (1, 2), batch=1, heads=1, size=16, repeats=2, device="cpu")
    for work, rows in panels.items():
        assert [(row.system, row.size["T"]) for row in rows] == [
            ("prism chunk, L=1", 20),
            ("PyTorch causal attention", 20),
            ("prism chunk, L=1", 40),
            ("PyTorch causal attention", 40),
            ("prism chunk, L=2", 20),
            ("prism chunk, L=2", 40),
        ]
        assert all(row.work == work and row.seconds > 0 and row.repeats == 2 for row in rows)


def test_nothing_wrong_is_timed() -> None:
    with pytest.raises(ValueError, match="half is wrong, so nothing was timed"):
        gpu.check("half", lambda *x: 0.5 * gpu.ours("chunk", *x), torch.device("cpu"), 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "op", "--device", "cuda"])
    assert stopped.value.code == 2
    assert "device 'cuda' cannot be used" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_kernels_are_timed_on_a_gpu() -> None:
    panels = gpu.measure((64,), (2,), batch=1, heads=2, size=64, repeats=2, device="cuda")
    assert panels["forward"][0].system == "prism triton, L=2"
