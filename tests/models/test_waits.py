"""A training step and a decoding step never wait for the device: both can be captured as a CUDA graph."""

import pytest
import torch
from support.waits import meta_for_gpu

from prism.layers import MIXERS
from prism.models.backbone import Backbone, BackboneConfig
from prism.ops.common import layout, packing
from prism.ops.softmax_loss import softmax_loss

pytest.importorskip("triton", reason="the kernels need Triton: pip install 'prism-sequence[gpu]'")
RECURRENT = ["prism", "gated-deltanet", "deltanet", "deltaproduct", "pgdn", "efla", "linear-attention"]
GATED = ["gla", "gsa", "mamba2", "rwkv7"]


def backbone(mixer: str, layers: int = 2) -> Backbone:
    with torch.device("meta"):
        return BackboneConfig(dim=32, layers=layers, mixer=MIXERS[mixer].Config(heads=2)).build()


def train(model: Backbone, T: int = 70, cu_seqlens: torch.Tensor | None = None) -> None:
    table = torch.empty(50, 32, device="meta", requires_grad=True)
    x = torch.empty(1, T, 32, device="meta", requires_grad=True)
    y, _ = model(x, cu_seqlens=cu_seqlens)
    loss = softmax_loss(y.flatten(0, 1), table, torch.empty(T, dtype=torch.long, device="meta"))
    parameters = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, [*parameters, table])
    torch._foreach_add_([p.detach() for p in parameters], list(grads[:-1]), alpha=-0.1)


def test_the_count_sees_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.empty(3, device="meta")
    with meta_for_gpu(monkeypatch) as waits:
        torch.tensor([1, 2]).to("meta")
        for wait in (lambda: float(x.sum()), lambda: x[x > 0], lambda: x.nonzero()):
            with pytest.raises((RuntimeError, NotImplementedError)):
                wait()
    assert waits.found == ["_to_copy: a copy between host and device", "_local_scalar_dense", "index", "nonzero"]


@pytest.mark.parametrize("mixer", [*RECURRENT, *GATED, "attention"])
def test_a_training_step_never_waits(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = backbone(mixer)
    with meta_for_gpu(monkeypatch) as waits:
        train(model)
    assert waits.found == []


@pytest.mark.parametrize("mixer", [*RECURRENT, *GATED])
def test_a_decoding_step_never_waits(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = backbone(mixer).eval()
    x = torch.empty(3, 32, device="meta")
    with torch.no_grad(), meta_for_gpu(monkeypatch) as waits:
        _, state = model.step(x)
        y, _ = model.step(x, state)
    assert y.is_meta
    assert waits.found == []


@pytest.mark.parametrize(("mixer", "copies"), [("prism", 1), ("gated-deltanet", 1), ("gla", 3), ("rwkv7", 6)])
def test_limits_of_packed_sequences_go_to_the_device_once_for_all_layers(
    mixer: str, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for layers in (1, 3):
        packing._copied.cache_clear()
        layout._kept.cache_clear()
        model = backbone(mixer, layers)
        with meta_for_gpu(monkeypatch) as waits:
            train(model, cu_seqlens=packing.Packing((0, 30, 70)))  # type: ignore[arg-type]
        counts.append(len(waits.found))
    assert counts == [copies, copies]
