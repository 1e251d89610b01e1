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
from prism.ops.gated import traced as gated_traced

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_the_operation_keeps_pytorchs_rules() -> None:
    c = draw(1, 5, 1, 2, 3, 2)
    tensors = [x.clone().requires_grad_() for x in c.tensors()]
    for bounds in (None, [0, 5]):
        torch.library.opcheck(traced._node, (tensors, c.scale, "key", bounds))


OTHERS = ["gated-deltanet", "gsa", "mamba2", "rwkv7"]


@pytest.mark.parametrize(("side", "erases"), [("key", False), ("key", True), ("value", False)])
def test_the_operation_with_a_decay_per_channel_keeps_them_too(side: str, erases: bool) -> None:
    q, k, v, f, e = (torch.randn(1, 5, 1, 3, dtype=torch.float64, requires_grad=True) for _ in range(5))
    log_alpha = (-torch.rand(1, 5, 1, 3, dtype=torch.float64)).requires_grad_()
    S0 = torch.randn(1, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    tensors = [q, k, v, log_alpha, *((f, e) if erases else ()), S0]
    for bounds in (None, [0, 5]):
        torch.library.opcheck(gated_traced._node, (tensors, 0.5, side, bounds))


@pytest.mark.parametrize("mixer", ["prism", "gla", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_model_of_any_mixer_compiles_to_one_graph_with_the_same_gradients(mixer: str) -> None:
    words = [sys.executable, "-m", "support.compiled", mixer]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) < 1e-12


class Step(torch.nn.Module):
    """A decoding step of a mixer, its state as two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = MIXERS["prism"].Config(heads=2).build(8).eval()

    def forward(self, x: torch.Tensor, history: torch.Tensor, S: torch.Tensor):
        y, state = self.mixer.step(x, (history, S))
        return y, *state


def step_and_operands() -> tuple[Step, tuple[torch.Tensor, ...]]:
    step, x = Step(), torch.randn(3, 8)
    return step, (x, *step.mixer.step(x, None)[1])


@torch.no_grad()
def test_a_decoding_step_is_exported() -> None:
    step, given = step_and_operands()
    exported = torch.export.export(step, given)
    for a, b in zip(exported.module()(*given), step(*given), strict=True):
        torch.testing.assert_close(a, b)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
def test_a_decoding_step_becomes_onnx(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="pip install onnx onnxscript")
    pytest.importorskip("onnxscript", reason="pip install onnx onnxscript")
    from onnx.reference import ReferenceEvaluator

    step, given = step_and_operands()
    torch.onnx.export(step, given, dynamo=True).save(tmp_path / "step.onnx")
    model = onnx.load(tmp_path / "step.onnx")
    onnx.checker.check_model(model)
    named = {place.name: x.numpy() for place, x in zip(model.graph.input, given, strict=True)}
    for got, want in zip(ReferenceEvaluator(model).run(None, named), step(*given), strict=True):
        torch.testing.assert_close(torch.tensor(got), want, rtol=1e-4, atol=1e-5)


def test_encoding_packed_histories_is_exported_with_the_recurrence_as_one_operation() -> None:
    words = [sys.executable, "-m", "support.exported"]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    error, one_operation = done.stdout.split()
    assert float(error) < 1e-5
    assert one_operation == "True"


def test_meta_tensors_have_shapes() -> None:
    q, k, v = (torch.empty(1, 7, 2, n, device="meta") for n in (4, 4, 5))
    o, S = delta_rule(q, k, v, torch.empty(1, 7, 2, device="meta"), output_final_state=True, backend="chunk")
    assert o.shape == (1, 7, 2, 5)
    assert S is not None
    assert S.shape == (1, 2, 5, 4)
