"""A whole training step of the recommender and of a language model, and a step of each that answers: none waits.

Forward, loss, backward, gradients shortened, optimiser: as the loop computes them on batches that have arrived.
"""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from support import tiny
from support.waits import Waits, meta_for_gpu
from torch import nn

from prism.recommend.data.splits import split
from prism.recommend.model.experts import EXPERTS
from prism.recommend.model.recommender import Events
from prism.recommend.recommender import Recommender
from prism.train.config import TrainConfig
from prism.train.loop import Loop

pytest.importorskip("triton", reason="the kernels need Triton: pip install 'prism-sequence[gpu]'")


class OnMeta(Accelerator):
    """One process, whose device is the one that stands for a GPU."""

    device = property(lambda self: torch.device("meta"))  # type: ignore[assignment]


def waits_of_a_step(model: nn.Module, task: Any, batch: Any, monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Two steps, of which the first makes the optimiser's state; with the optimiser's fused form, as on a GPU."""
    optimiser = import_module("torch.optim.optimizer")
    monkeypatch.setattr(optimiser, "_get_fused_kernels_supported_devices", lambda: ["meta"])
    with meta_for_gpu(monkeypatch) as waits:
        loop = Loop(model, task, TrainConfig(), OnMeta(cpu=True))
        loop.stepper.model.train()
        given = [(send_to_device(batch, torch.device("meta")), 1.0)]
        loop.stepper.compute(given)
        waits.found.clear()
        assert loop.stepper.compute(given).shape == (3,)
    assert all(weight.grad is not None for weight in model.parameters())
    return waits


def recommender(**fields: object) -> Recommender:
    config = replace(tiny.CONFIG, **fields)  # type: ignore[arg-type]
    made = Recommender._untrained(split(tiny.log(), config.protocol), config)
    if config.experts:
        made.fit_experts()
    return made


@pytest.mark.parametrize("experts", [(), EXPERTS])
def test_a_training_step_of_the_recommender_never_waits(
    experts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recommender(experts=experts, time_gaps=True, query_time=True, item_bias=True, projection=True)
    task = made.task()
    waits = waits_of_a_step(made.model, task, task.batches(0)[0], monkeypatch)
    assert waits.found == []


@torch.no_grad()
def test_an_event_of_live_users_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = recommender(time_gaps=True).model.to("meta").eval()
    events = Events(*(torch.zeros(3, *more, dtype=torch.long, device="meta") for more in ((), (), (2,))))
    with meta_for_gpu(monkeypatch) as waits:
        x, state = model.step(events, None)
        waits.found.clear()
        x, state = model.step(events, state)
        assert model.scores(x).shape == (3, model.items)
    assert waits.found == []


def language_model() -> Any:
    hf = pytest.importorskip("prism.lm.hf.model", reason="pip install 'prism-sequence[lm]'")
    sizes = {"vocab_size": 280, "hidden_size": 16, "num_hidden_layers": 2, "mixer_fields": {"heads": 2}}
    return hf.PrismSequenceForCausalLM(hf.PrismSequenceConfig(**sizes))


def test_a_training_step_of_a_language_model_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = language_model()
    from prism.lm.data.shards import write_shards
    from prism.lm.data.tokenizer import train_tokenizer
    from prism.lm.learner import Learner
    from prism.lm.task import LanguageTask

    tokens = write_shards(["abc " * 40], train_tokenizer(["abc " * 40], vocabulary=280), tmp_path, source="x", size=400)
    task = LanguageTask(train=tokens, valid=tokens, tokens=16, rounds=1, length=8, batch=2)
    waits = waits_of_a_step(Learner(lm), task, task.batches(0)[0], monkeypatch)
    assert waits.found == []


@torch.no_grad()
def test_a_decoding_step_of_a_language_model_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = language_model().to("meta").eval()
    token = torch.zeros(2, 1, dtype=torch.long, device="meta")
    with meta_for_gpu(monkeypatch) as waits:
        cache = lm(token, use_cache=True).past_key_values
        waits.found.clear()
        found = lm(token, past_key_values=cache, use_cache=True)
        assert found.logits.argmax(-1).shape == (2, 1)
    assert waits.found == []
