"""`auto` leaves the compiled backend only for what a compiler can fail at, and tries what will be asked of it."""

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from numba.core.errors import NumbaError

from prism.layers import MIXERS
from prism.ops.common import backends, device
from prism.ops.delta.definition import MODULES


class Fake(SimpleNamespace):
    """A backend's module whose compiler raises what it is told to."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(error=error, asked=[])

    def compile(self, dtype: torch.dtype, *, backward: bool) -> None:
        self.asked.append((dtype, backward))
        if self.error is not None:
            raise self.error


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> object:
    """What `auto` takes where compiling raises an error; with the module that was asked."""

    def choose(error: Exception | None, *, trained: bool) -> tuple[str, Fake]:
        backends.compiles.cache_clear()
        backends._say_once.cache_clear()
        fake = Fake(error)
        monkeypatch.setitem(sys.modules, "fake_backend", fake)  # type: ignore[arg-type]
        q = torch.zeros(1, 1, 1, 1, requires_grad=trained)
        return backends.choose("auto", (q,), {"cpu": "fake_backend", "chunk": "unused"}), fake

    yield choose
    backends.compiles.cache_clear()


@pytest.mark.parametrize("error", [NumbaError("no"), ImportError("no"), OSError("no"), RuntimeError("no")])
def test_what_a_compiler_can_fail_at_is_told_and_the_chunk_form_serves(chosen, error: Exception) -> None:
    with pytest.warns(RuntimeWarning, match=r"without its compiled CPU kernels, slower \(\w+: no\)"):
        assert chosen(error, trained=False)[0] == "chunk"


@pytest.mark.parametrize("error", [TypeError("ours"), AttributeError("ours"), KeyError("ours"), ValueError("ours")])
def test_a_mistake_of_our_own_is_not_hidden(chosen, error: Exception) -> None:
    with pytest.raises(type(error), match="ours"):
        chosen(error, trained=False)


@pytest.mark.parametrize("trained", [False, True])
def test_the_backward_is_tried_too_where_gradients_will_be_asked_for(chosen, trained: bool) -> None:
    name, fake = chosen(None, trained=trained)
    assert name == "cpu"
    assert fake.asked == [(torch.float32, trained)]


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Meta tensors count as a GPU's, on a machine that has no Triton."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else find(name))
    monkeypatch.setattr(device, "GPUS", {"cuda", "meta"})
    backends.has_triton.cache_clear()
    yield
    backends.has_triton.cache_clear()


def test_a_gpu_without_triton_takes_the_chunk_form_and_says_so_once(without_triton: None) -> None:
    module = MIXERS["prism"].Config(heads=2).build(16).to("meta")
    x = torch.empty(1, 20, 16, device="meta")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            y, state = module(x)
            module.step(x[:, 0], state)
    assert y.shape == x.shape
    assert [str(one.message) for one in said] == [
        "prism runs without its GPU kernels, slower: pip install 'prism-sequence[gpu]'"
    ]
    assert backends.choose("auto", (torch.empty(1, 1, 1, 1, device="meta"),), MODULES) == "chunk"
