"""The recurrence and the mixers on it inside `torch.compile` and `torch.export`: one graph, the same numbers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.recurrence import draw

from prism.layers import MIXERS
from prism.ops import delta_rule
from prism.ops.delta import traced

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_the_operation_keeps_pytorchs_rules() -> None:
    c = draw(1, 5, 1, 2, 3, 2)
    tensors = [x.clone().requires_grad_() for x in c.tensors()]
    for bounds in (None, [0, 5]):
        torch.library.opcheck(traced._delta_rule, (*tensors, c.scale, bounds))


@pytest.mark.parametrize("mixer", ["prism", pytest.param("gated-deltanet", marks=pytest.mark.slow)])
def test_a_mixer_compiles_to_one_graph_with_the_same_gradients(mixer: str) -> None:
    words = [sys.executable, "-m", "support.compiled", mixer]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) < 1e-12


def test_a_decoding_step_is_exported() -> None:
    torch.manual_seed(0)
    mixer = MIXERS["prism"].Config(heads=2).build(8).eval()

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixer = mixer

        def forward(self, x: torch.Tensor, history: torch.Tensor, S: torch.Tensor):
            y, state = self.mixer.step(x, (history, S))
            return y, *state

    x = torch.randn(3, 8)
    with torch.no_grad():
        _, state = mixer.step(x, None)
        exported = torch.export.export(Step(), (x, *state))
        got, want = exported.module()(x, *state), Step()(x, *state)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_meta_tensors_have_shapes() -> None:
    q, k, v = (torch.empty(1, 7, 2, n, device="meta") for n in (4, 4, 5))
    o, S = delta_rule(q, k, v, torch.empty(1, 7, 2, device="meta"), output_final_state=True, backend="chunk")
    assert o.shape == (1, 7, 2, 5)
    assert S is not None
    assert S.shape == (1, 2, 5, 4)
