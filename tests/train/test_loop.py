"""The loop on a toy task: it learns, stops early, resumes bit for bit, and refuses what is not finite."""

import errno
import os
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from support.toy import Toy, net
from torch import Tensor, nn

from prism.errors import InputError, Note
from prism.train import checkpoints
from prism.train.config import TrainConfig
from prism.train.journal import read_journal
from prism.train.keeper import load_best
from prism.train.loop import Loop, train
from prism.train.optimiser import decays

CONFIG = TrainConfig(epochs=3, lr=0.02, log_steps=2, seed=5)


def weights(model: nn.Module) -> list[Tensor]:
    return [w.detach().clone() for w in model.parameters()]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(map(torch.equal, a, b))


def trained(out: Path | None = None, task: Toy | None = None, config: TrainConfig = CONFIG) -> nn.Module:
    model = net()
    train(model, task or Toy(), config, out=out, progress=False)
    return model


def stop_at(step: int) -> Toy:
    """A task in whose loss number `step` somebody presses Ctrl-C."""
    steps = iter(range(1, 1000))

    def each(loss: Tensor) -> Tensor:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGINT)
        return loss

    return Toy(each)


def test_training_lowers_the_monitored_error_and_returns_the_best_weights() -> None:
    model = net()
    before = Toy().evaluate(model.eval())["error"]
    end = train(model, Toy(), replace(CONFIG, epochs=20), progress=False)
    assert end.best is not None
    assert end.best < 0.3 * before
    assert Toy().evaluate(model.eval())["error"] == end.best == end.best_metrics["error"]


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    assert equal(weights(trained()), weights(trained()))
    assert not equal(weights(trained()), weights(trained(config=replace(CONFIG, seed=6))))


def test_training_leaves_the_callers_generator_as_it_was() -> None:
    model = net()
    before = torch.get_rng_state()
    train(model, Toy(), CONFIG, progress=False)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("step", [1, 5, 7, 13])
def test_after_ctrl_c_the_same_call_continues_bit_for_bit(tmp_path: Path, step: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "a", stop_at(step))
    saved = checkpoints.newest(tmp_path / "a", "last")
    assert saved is not None
    assert saved.name.endswith(f"step{step}")
    resumed, undisturbed = trained(tmp_path / "a"), trained(tmp_path / "b")
    assert equal(weights(resumed), weights(undisturbed))
    last = [checkpoints.load_tensors(checkpoints.newest(tmp_path / x, "last"), "optimiser") for x in "ab"]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[1])
    logs = [read_journal(tmp_path / x / "log.jsonl") for x in "ab"]
    for line in [*logs[0], *logs[1]]:
        line.pop("tokens_per_second", None)
    assert logs[0] == logs[1]


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(net(), stop_at(4), CONFIG, out=tmp_path)
    said = " ".join(capsys.readouterr().err.split())
    assert f"stopped at step 4 of epoch 1; saved in {tmp_path}: the same command continues from there" in said


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = trained(tmp_path)
    assert equal(weights(first), weights(trained(tmp_path, stop_at(1))))


def test_accumulated_batches_give_the_gradient_of_the_joint_batch() -> None:
    class Joined(Toy):
        def batches(self, epoch: int) -> list[tuple[Tensor, Tensor]]:
            parts = super().batches(epoch)
            return [tuple(map(torch.cat, zip(*parts[n : n + 3], strict=True))) for n in range(0, 6, 3)]  # type: ignore

    ends = []
    for task, accumulate in ((Toy(count=6), 3), (Joined(count=6), 1)):
        model = net().double()
        model[1].p = 0.0
        train(model, task, replace(CONFIG, accumulate=accumulate), progress=False)
        ends.append(weights(model))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b)


def test_a_loss_that_is_not_finite_stops_with_step_batch_and_checkpoint(tmp_path: Path) -> None:
    steps = iter(range(1, 100))
    bad = Toy(lambda loss: loss * float("nan") if next(steps) == 10 else loss)
    with pytest.raises(InputError, match=r"the loss is nan at step 10 \(epoch 2, batch 2: 5 points\)") as error:
        trained(tmp_path, bad)
    assert str(checkpoints.newest(tmp_path, "last")) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_gradient_that_is_not_finite_never_reaches_the_weights() -> None:
    model = net()
    before = weights(model)
    with pytest.raises(InputError, match=r"the gradient's length is (nan|inf) at step 1"):
        train(model, Toy(lambda loss: loss + (loss - loss.detach()) * 1e38 * 10), CONFIG, progress=False)
    assert equal(before, weights(model))


def test_training_stops_when_patience_runs_out_and_keeps_the_best() -> None:
    class Worse(Toy):
        def evaluate(self, model: nn.Module) -> dict[str, float]:
            return {"error": 1.0}

    end = train(net(), Worse(), replace(CONFIG, epochs=50, patience=3), progress=False)
    assert (end.epoch, end.best_epoch) == (4, 0)


def test_the_log_has_a_line_every_few_steps_and_one_an_evaluation(tmp_path: Path) -> None:
    trained(tmp_path)
    lines = read_journal(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 6, 7, 8, 10, 12, 14, 16, 18, 20, 21]
    assert [line["epoch"] for line in lines if "valid/error" in line] == [1, 2, 3]
    assert all(line["tokens_per_second"] > 0 for line in lines if "loss" in line)


def test_an_opening_that_was_told_and_not_kept_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Toy(start="nothing learned yet")

    def killed(loop: Loop) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_save", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, task)
    with pytest.warns(Note, match="the run starts again"):
        trained(tmp_path, task)
    found = [line["step"] for line in read_journal(tmp_path / "log.jsonl") if "valid/error" in line]
    assert found == sorted(set(found))


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    trained(tmp_path, config=replace(CONFIG, tensorboard=True))
    assert any((tmp_path / "tensorboard").iterdir())


def test_the_rate_rises_to_its_peak_then_falls_along_a_cosine() -> None:
    config = TrainConfig(lr=1.0, warmup=0.1, final_lr=0.2)
    assert [round(config.rate(x), 6) for x in (0.0, 0.05, 0.1, 0.55, 1.0)] == [0.0, 0.5, 1.0, 0.6, 0.2]


def test_embeddings_norms_and_biases_do_not_decay() -> None:
    model = nn.ModuleDict({"a": nn.Embedding(3, 4), "b": nn.Linear(4, 4), "c": nn.LayerNorm(4), "d": nn.RMSNorm(4)})
    model.gain_bias = nn.Parameter(torch.ones(2, 3))
    assert decays(model) == {"b.weight"}


def test_bfloat16_products_train_too() -> None:
    error = Toy().evaluate(trained(config=replace(CONFIG, epochs=20, precision="bfloat16")).eval())["error"]
    assert error < 0.3 * Toy().evaluate(net().eval())["error"]


def test_a_checkpoint_of_another_model_is_refused_in_one_line(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(InputError, match="is not a checkpoint of this model") as error:
        train(nn.Linear(4, 1), Toy(), CONFIG, out=tmp_path, progress=False)
    assert "\n" not in str(error.value)


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, stop_at(11), replace(CONFIG, save_seconds=0))
    newest, before = checkpoints.checkpoints(tmp_path, "last")
    flip_a_bit(newest / "optimiser.safetensors")
    with pytest.warns(Note, match=rf"optimiser.safetensors is damaged.*goes on from the one before, {before.name}"):
        resumed = trained(tmp_path)
    assert equal(weights(resumed), weights(trained()))


def test_a_run_with_no_checkpoint_that_can_be_read_is_refused(tmp_path: Path) -> None:
    trained(tmp_path)
    for found in checkpoints.checkpoints(tmp_path, "last"):
        (found / "model.safetensors").write_bytes(b"junk")
    with pytest.warns(Note), pytest.raises(InputError, match=r"model.safetensors cannot be read"):
        trained(tmp_path)


def test_a_run_whose_checkpoints_were_deleted_says_that_it_starts_again(tmp_path: Path) -> None:
    trained(tmp_path)
    for found in checkpoints.checkpoints(tmp_path, "last"):
        shutil.rmtree(found)
    with pytest.warns(Note, match=r"has no checkpoint last-\*: the run starts again from epoch 1"):
        trained(tmp_path)


def test_flipped_bits_in_the_best_weights_are_refused(tmp_path: Path) -> None:
    trained(tmp_path)
    flip_a_bit(next(tmp_path.glob("best-*/model.safetensors")))
    with pytest.raises(InputError, match=r"model.safetensors is damaged"):
        load_best(net(), tmp_path)


def test_checkpoints_without_checksums_are_read_and_what_only_looks_like_one_is_left_alone(tmp_path: Path) -> None:
    made = trained(tmp_path)
    for sums in tmp_path.glob("*/checksums.json"):
        sums.unlink()
    for name in ("last-backup", "last-backup-step3", "best-old"):
        (tmp_path / name).mkdir()
    assert equal(weights(trained(tmp_path)), weights(made))
    assert {"last-backup", "last-backup-step3", "best-old"} < {path.name for path in tmp_path.iterdir()}


def test_facts_that_are_no_object_are_refused_in_one_line(tmp_path: Path) -> None:
    trained(tmp_path)
    found = checkpoints.newest(tmp_path, "last")
    assert found is not None
    (found / "checksums.json").unlink()
    (found / "facts.json").write_text("[]")
    with pytest.raises(InputError, match="the checkpoint must be a JSON object, got list"):
        trained(tmp_path)


@pytest.mark.parametrize("full_at", ["os.fsync", "safetensors.torch.save_file"])
def test_a_full_disk_is_one_line_and_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, stop_at(4))
    before = {path.name for path in tmp_path.iterdir()}

    def full(*_: object) -> None:
        if full_at == "os.fsync":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(full_at, full)
        with pytest.raises(InputError, match=r"cannot write .*(last|best)-00000\d-step\d+: .*No space left on device"):
            trained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} - {"log.jsonl"} == before - {"log.jsonl"}
    assert equal(weights(trained(tmp_path)), weights(trained()))


def test_only_the_newest_checkpoints_of_a_kind_stay(tmp_path: Path) -> None:
    trained(tmp_path, config=replace(CONFIG, save_seconds=0))
    assert len(list(tmp_path.glob("last-*"))) == 2
    assert len(list(tmp_path.glob("best-*"))) == 1
    assert not list(tmp_path.glob(".*"))
    assert checkpoints.load_facts(checkpoints.checkpoints(tmp_path, "last")[0])["finished"]


def test_the_next_batch_is_made_while_a_step_runs_and_the_weights_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each loss waits until the batch after its own has been asked for; without a thread beside it that never is."""

    class Watched(list):
        def __init__(self, made: list) -> None:
            super().__init__(made)
            self.asked = [threading.Event() for _ in made]

        def __getitem__(self, n: int) -> tuple[Tensor, Tensor]:
            self.asked[n].set()
            return super().__getitem__(n)

    class Watching(Toy):
        def batches(self, epoch: int) -> Watched:
            self.now, self.step = Watched(list(super().batches(epoch))), 0
            return self.now

        def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
            self.step += 1
            if self.step < self.count:
                assert self.now.asked[self.step].wait(10)
            return super().loss(model, batch)

        def evaluate(self, model: nn.Module) -> dict[str, float]:
            return Toy().evaluate(model)

    beside = weights(trained(task=Watching()))
    monkeypatch.setattr("prism.train.loop.beside_the_step", lambda batches: batches)
    assert equal(beside, weights(trained()))
