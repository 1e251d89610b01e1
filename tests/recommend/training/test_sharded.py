"""A divided item table trains as a whole one does, on any number of processes, also after a kill."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes import run_ranks
from support.sharded import CONFIG, fit
from torch import Tensor
from torch.overrides import TorchFunctionMode

from prism.errors import InputError
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.recommender import Recommender
from prism.recommend.runs.export import export
from prism.recommend.runs.streaming import fit_streamed
from prism.recommend.training.objectives import ObjectiveConfig
from prism.recommend.training.sharded import ShardedTask, build_sharded
from prism.recommend.training.stream import StreamConfig, StreamTask, sample
from prism.train import checkpoints
from prism.train.journal import read_journal


def losses(out: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_journal(out / "log.jsonl") if "loss" in line}


@pytest.mark.parametrize(("loss", "focus"), [("softmax", None), ("sampled", None), ("sampled", 0.5)])
def test_one_process_with_a_divided_table_has_the_loss_and_gradients_of_a_whole_one(
    data: Path, loss: str, focus: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardedTask, "_draw", StreamTask._draw)  # the same draws: a shard has draws of its own
    prepared = Prepared.open(data)
    config = replace(CONFIG, objective=ObjectiveConfig(loss=loss, focus=focus, negatives=16, shared=4))
    split = sample(prepared, 100)
    model = build_sharded(config, split.train.n_items, None)
    plain = Recommender._untrained(split, config)
    plain.model.load_state_dict(model.state_dict())
    task = plain.task(StreamTask, prepared=prepared, stream=StreamConfig(workers=0))
    batch = task.batches(0)[3]
    found = []
    divided = plain.task(ShardedTask, prepared=prepared, stream=StreamConfig(workers=0))
    for made, of in ((plain.model, task), (model, divided)):
        torch.manual_seed(1)
        value, count = of.loss(made, batch)
        value.backward()
        grads = {name: p.grad.to_dense() for name, p in made.named_parameters()}
        found.append((value, count, grads, of.evaluate(made.eval())))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    for name, grad in found[0][2].items():
        torch.testing.assert_close(found[1][2][name], grad, msg=lambda m, n=name: f"{n}: {m}")
    assert found[1][3] == pytest.approx(found[0][3], abs=1e-6)


class Numbers(TorchFunctionMode):
    """Notes tensors that became arrays without being brought to the CPU first, as a GPU's must be."""

    def __init__(self) -> None:
        super().__init__()
        self.brought, self.refused = list[Tensor](), list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is Tensor.cpu:
            self.brought.append(found)
        if func is Tensor.numpy and not any(args[0] is one for one in self.brought):
            self.refused.append(args[0])
        return found


def test_what_shards_count_is_brought_to_the_cpu_before_it_is_an_array(data: Path) -> None:
    prepared = Prepared.open(data)
    split = sample(prepared, 100)
    model = build_sharded(CONFIG, split.train.n_items, None).eval()
    task = Recommender._untrained(split, CONFIG).task(ShardedTask, prepared=prepared, stream=StreamConfig(workers=0))
    with Numbers() as numbers:
        task.evaluate(model)
    assert not [one for one in numbers.refused if one.shape == (2, len(task._valid))]


def test_two_processes_follow_the_loss_of_one_and_rank_as_it_does(data: Path, tmp_path: Path) -> None:
    one = replace(CONFIG, train=replace(CONFIG.train, accumulate=2))
    run_ranks(1, fit, data, tmp_path / "one", one, polars=True)
    run_ranks(2, fit, data, tmp_path / "two", CONFIG, polars=True)
    a, b = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert a.keys() == b.keys()
    assert len(a) >= 50
    assert [b[step] for step in a] == pytest.approx(list(a.values()), rel=1e-5)
    whole, halves = (checkpoints.newest(tmp_path / name, "best") for name in ("one", "two"))
    assert len(list((halves / "model").glob("*.safetensors"))) == 2
    metrics = [checkpoints.load_facts(path)["best_metrics"] for path in (whole, halves)]
    assert metrics[1] == pytest.approx(metrics[0], abs=1e-6)
    loaded = Recommender.load(tmp_path / "two", device="cpu")
    best = loaded.recommend(history=[1, 2, 3], k=5)
    assert len(best) == 5
    export(loaded, tmp_path / "model")  # the usual safetensors, in one file
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert Recommender.load(tmp_path / "model", device="cpu").recommend(history=[1, 2, 3], k=5) == best


@pytest.mark.slow
def test_killed_on_two_processes_it_goes_on_with_one_and_with_two_again(data: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_ranks(2, fit, data, tmp_path / "killed", CONFIG, 20, polars=True)
    with pytest.raises(AssertionError):
        run_ranks(1, fit, data, tmp_path / "killed", CONFIG, 3, polars=True)
    steps = [checkpoints.load_facts(checkpoints.newest(tmp_path / "killed", "last"))["step"]]
    run_ranks(2, fit, data, tmp_path / "killed", CONFIG, polars=True)
    assert steps == [23]
    facts = checkpoints.load_facts(checkpoints.newest(tmp_path / "killed", "last"))
    assert facts["finished"]
    assert facts["best_metrics"]


def test_that_a_divided_table_has_no_experts_is_said_in_one_line(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_rule = replace(CONFIG, experts=None, train=replace(CONFIG.train, epochs=1))
    made = fit_streamed(Prepared.open(data), by_rule, None, device="cpu", workers=0, shard_items=True)
    assert made.model.gates is None
    lines = [line for line in capsys.readouterr().out.splitlines() if "experts" in line]
    assert lines == ["experts none: a divided item table has rows alone; without --shard-items there are experts"]
    with pytest.raises(InputError, match=r"experts is .*: a divided item table has rows alone"):
        fit_streamed(Prepared.open(data), replace(CONFIG, experts=("next",)), None, progress=False, shard_items=True)


def test_what_a_divided_table_cannot_have_is_refused(data: Path) -> None:
    with pytest.raises(InputError, match="item_bias"):
        build_sharded(replace(CONFIG, item_bias=True), 10, None)
    config = replace(CONFIG, objective=ObjectiveConfig(loss="softmax", focus=0.5))
    with pytest.raises(InputError, match=r"focus is 0\.5: a divided item table has it with loss sampled"):
        fit_streamed(Prepared.open(data), config, None, progress=False, device="cpu", workers=0, shard_items=True)
    config = replace(CONFIG, train=replace(CONFIG.train, epochs=0))
    with pytest.raises(InputError, match="epochs must be given"):
        fit_streamed(Prepared.open(data), config, None, progress=False, device="cpu", shard_items=True)
