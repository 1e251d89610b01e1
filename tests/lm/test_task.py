"""Training on packed tokens: windows in a fixed random order, a loss that is the model's own, weights saved once."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")

from prism.errors import InputError
from prism.lm.data.shards import Shards, write_shards
from prism.lm.data.tokenizer import train_tokenizer
from prism.lm.hf.model import PrismSequenceConfig, PrismSequenceForCausalLM
from prism.lm.learner import Learner
from prism.lm.task import LanguageTask
from prism.train.config import TrainConfig
from prism.train.loop import train

TEXT = ["".join(f"sentence {n} of document {m}. " for n in range(40)) for m in range(6)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("tokens")
    return write_shards(TEXT, train_tokenizer(TEXT, vocabulary=280), folder, source="x", size=400)


def learner(tied: bool = True) -> Learner:
    torch.manual_seed(0)
    sizes = {"vocab_size": 280, "hidden_size": 16, "num_hidden_layers": 2, "mixer_fields": {"heads": 2}}
    return Learner(PrismSequenceForCausalLM(PrismSequenceConfig(**sizes, tie_word_embeddings=tied)))


def task(shards: Shards, **fields) -> LanguageTask:
    settings = {"tokens": 1024, "rounds": 2, "length": 16, "batch": 4, **fields}
    return LanguageTask(train=shards, valid=shards, **settings)


def test_every_window_comes_once_before_any_comes_again(shards: Shards) -> None:
    count = shards.windows(16)
    own = task(shards, tokens=count * 16 * 2, batch=1, rounds=2)
    rows = [tuple(batch[0].tolist()) for epoch in (0, 1) for batch in own.batches(epoch)]
    windows = sorted(tuple(shards.window(n, 16).tolist()) for n in range(count))
    assert sorted(rows[:count]) == windows
    assert sorted(rows[count:]) == windows
    assert rows[:count] != rows[count:]
    again = [tuple(batch[0].tolist()) for batch in own.batches(0)]
    assert again == rows[:count]


@torch.no_grad()
def test_the_loss_is_the_models_own(shards: Shards) -> None:
    model, own = learner(), task(shards)
    (batch, *_) = own.batches(0)
    loss, count = own.loss(model, batch)
    assert count == 4 * 16
    assert float(loss) / count == pytest.approx(float(model.lm(batch, labels=batch).loss), rel=1e-5)


def test_separate_documents_are_learned_as_if_each_came_alone() -> None:
    model = learner().double()
    model.end = 3
    rows = torch.tensor([[5, 6, 3, 7, 8, 9, 3], [3, 4, 3, 3, 5, 6, 7]])
    model(rows).backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    pieces = [([5, 6], [6, 3]), ([3, 7, 8, 9], [7, 8, 9, 3]), ([3, 4], [4, 3]), ([3], [3]), ([3, 5, 6], [5, 6, 7])]
    total = torch.zeros(())
    for inputs, targets in pieces:
        logits = model.lm(torch.tensor([inputs])).logits[0]
        total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="sum")
    total.backward()
    for a, p in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-8, atol=1e-9)


@torch.no_grad()
def test_evaluation_is_the_mean_over_the_validation_windows(shards: Shards) -> None:
    model, own = learner(), task(shards)
    rows = torch.from_numpy(np.stack([shards.window(n, 16) for n in range(shards.windows(16))]))
    mean = float(model(rows)) / rows[:, 1:].numel()
    found = own.evaluate(model)
    assert found["loss"] == pytest.approx(mean, rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(mean), rel=1e-4)
    size = sum(len(text.encode()) for text in TEXT)
    assert found["bits_per_byte"] == pytest.approx(mean / np.log(2) * shards.tokens / size, rel=1e-4)


def test_tied_weights_are_saved_once_and_come_back_as_one() -> None:
    for tied in (True, False):
        first, second = learner(tied), learner(tied)
        with torch.no_grad():
            first.lm.model.embed_tokens.weight.mul_(2)
        weights = first.state_dict()
        assert ("lm.lm_head.weight" in weights) == (not tied)
        second.load_state_dict(weights)
        assert (second.lm.lm_head.weight is second.lm.model.embed_tokens.weight) == tied
        for a, b in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(a, b)


def test_a_run_stopped_inside_an_epoch_ends_as_if_it_had_not_been(shards: Shards, tmp_path: Path) -> None:
    class Stopping(LanguageTask):
        def loss(self, model, batch):
            if len(seen) == 5:
                raise RuntimeError("stop")
            seen.append(1)
            return super().loss(model, batch)

    settings = TrainConfig(epochs=2, lr=1e-2, save_seconds=0.0, precision="float32")
    whole = learner()
    train(whole, task(shards), settings, progress=False)
    seen: list[int] = []
    own = task(shards)
    stopping = Stopping(train=shards, valid=shards, tokens=own.tokens, rounds=2, length=16, batch=4)
    with pytest.raises(RuntimeError, match="stop"):
        train(learner(), stopping, settings, out=tmp_path, progress=False)
    resumed = learner()
    train(resumed, own, settings, out=tmp_path, progress=False)
    for (name, a), b in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_too_little_text_or_budget_is_refused(shards: Shards) -> None:
    with pytest.raises(InputError, match="less than one window of length 100000"):
        task(shards, length=100000)
    with pytest.raises(InputError, match="tokens must be at least 128"):
        task(shards, tokens=100)
