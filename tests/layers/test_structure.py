"""The house rules of mixers: few calls to the kernel, shallow classes, packed bounds read once, no circular imports."""

import inspect
import sys
from collections.abc import Callable
from graphlib import TopologicalSorter

import grimp
import pytest
import torch
from torch import Tensor, nn

from prism.layers import MIXERS, mixer_config
from prism.models.backbone import BackboneConfig
from prism.ops.common.packing import Packing
from prism.ops.cpu.delta import backend as delta_backend
from prism.ops.cpu.gated import backend as gated_backend

COMPILED = ["prism", "prism-mom", "mom", "gla", "gsa", "mamba2", "deltanet", "gated-deltanet", "efla", "pgdn", "rwkv7"]


def watch(calls: list[list[str]], kernel: Callable[..., None]) -> Callable[..., None]:
    """The kernel, noting the functions of the package on the stack, from a mixer's `forward` to the kernel."""

    def watched(*args: object) -> None:
        frame, names = sys._getframe(1), []
        while frame is not None and frame.f_code.co_name != "_call_impl":
            if "/prism/" in frame.f_code.co_filename:
                names.append(frame.f_code.co_qualname)
            frame = frame.f_back
        calls.append(names[::-1])
        kernel(*args)

    return watched


@pytest.mark.parametrize("name", [*COMPILED, "linear-attention"])
def test_a_mixer_is_six_calls_from_its_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    for backend in (delta_backend, gated_backend):
        monkeypatch.setattr(backend, "forward_range", watch(calls, backend.forward_range))
    mixer_config(name, heads=2).build(16)(torch.randn(1, 5, 16))
    first, *between = calls[-1]  # a recurrence that makes operands of another (PGDN's energies) comes earlier
    assert first == "Mixer.forward"
    assert len(between) <= 6, between


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_are_final_and_at_most_three_deep(name: str) -> None:
    cls = MIXERS[name]
    ancestors = cls.__mro__[: cls.__mro__.index(nn.Module)]
    assert len(ancestors) <= 3, ancestors
    assert getattr(cls, "__final__", False)
    assert not [child for child in cls.__subclasses__() if child.__module__.startswith("prism.")]
    assert all(inspect.isabstract(parent) for parent in ancestors[1:])


@pytest.mark.parametrize("name", MIXERS)
def test_a_model_reads_packed_bounds_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = BackboneConfig(dim=16, layers=3, mixer=mixer_config(name, heads=2), positions=8).build()
    limits, reads = torch.tensor([0, 3, 3, 10]), []
    for method in ("tolist", "item", "numpy", "__bool__", "__int__", "__float__"):
        read = getattr(Tensor, method)

        def counted(self: Tensor, *args: object, read=read, **options: object) -> object:
            reads.append(self)
            return read(self, *args, **options)

        monkeypatch.setattr(Tensor, method, counted)
    model(torch.randn(1, 10, 16), cu_seqlens=limits)
    assert sum(x.data_ptr() == limits.data_ptr() for x in reads) == 1


@pytest.mark.parametrize("name", MIXERS)
def test_a_packing_stands_for_the_tensor_it_was_read_from(name: str) -> None:
    mixer, x = mixer_config(name, heads=2).build(16), torch.randn(1, 10, 16)
    limits = torch.tensor([0, 3, 3, 10])
    packing = Packing.of(limits, 1, 10)
    assert torch.equal(mixer(x, cu_seqlens=packing)[0], mixer(x, cu_seqlens=limits)[0])
    with pytest.raises(ValueError, match="cu_seqlens must run from 0 to T = 9, got 0 to 10"):
        mixer(x[:, :9], cu_seqlens=packing)


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = grimp.build_graph("prism", cache_dir=None)  # imports inside functions and for type checkers too
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # a CycleError names the modules
