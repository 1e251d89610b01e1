"""Probe runs: reproducible, judged on what was not seen, stopped when solved, resumed where they were stopped."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from prism import cli
from prism.errors import InputError
from prism.layers import mixer_config
from prism.printed import PROBING
from prism.probes import command as probing
from prism.probes.command import Job, ProbeSettings, probe, run_jobs
from prism.probes.report import cell, paper_accuracy
from prism.probes.settings import RECIPES
from prism.probes.tasks.base import VOCABULARY, Examples
from prism.probes.tasks.logic import Mux, Parity
from prism.probes.tasks.memory import VariableTracking
from prism.probes.tasks.spelling import spelled_probe
from prism.probes.tasks.tracking import RunningParity
from prism.probes.tasks.writing import MultiValueRecall
from prism.probes.training import ProbeModelConfig, ProbeResult, ProbeTraining, accuracy, batches, run_probe, watching

SHORT = ProbeTraining(steps=6, batch=8, every=3, watched=32, tested=64)
TASK = Parity(length=8)


def test_prism_without_a_feed_forward_learns_parity_in_seconds() -> None:
    training = ProbeTraining(steps=400, every=50, watched=256, tested=512)
    result, net = run_probe(TASK, ProbeModelConfig(), training)
    assert result.accuracy == 1
    assert result.solved_at is not None
    assert result.steps < 400  # it stopped when it was solved
    assert net.backbone.config.hidden == 0


def test_linear_attention_without_a_feed_forward_does_not() -> None:
    """The paper's Linearity Wall: the same recipe, the same steps."""
    training = ProbeTraining(steps=150, every=150, watched=256, tested=1024)
    result, _ = run_probe(TASK, ProbeModelConfig(mixer=mixer_config("linear-attention", heads=2)), training)
    assert abs(result.accuracy - 0.5) < 0.08
    assert result.solved_at is None


def test_heads_in_three_dimensions_learn_to_multiply_in_s4_in_seconds() -> None:
    """A sign and three letters: 13,824 words; naming the product of the first two alone would get 1 in 24."""
    training = ProbeTraining(steps=400, growing=0.0, every=200, watched=256, tested=1024)
    settings = ProbeSettings(tracking_length=4, training=training)
    task = settings.probe("s4:sign=true")
    result, _ = run_probe(task, settings.model(task, "prism:rotations,heads=8"), training)
    assert result.accuracy > 0.9


def test_a_run_is_a_function_of_its_seed() -> None:
    first, again = (run_probe(TASK, ProbeModelConfig(), SHORT, seed=3)[0] for _ in range(2))
    other = run_probe(TASK, ProbeModelConfig(), SHORT, seed=4)[0]
    assert replace(first, seconds=0) == replace(again, seconds=0)
    assert first.curve != other.curve


def test_accuracy_counts_right_answers() -> None:
    class Says(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(tokens[:, 0], VOCABULARY).float()

    tokens = np.arange(10)[:, None].repeat(3, 1)
    assert accuracy(Says(), Examples(tokens, np.where(np.arange(10) < 7, np.arange(10), 0))) == 0.7


def test_only_the_last_token_answers() -> None:
    torch.manual_seed(0)
    net = ProbeModelConfig().build()
    tokens = torch.from_numpy(Mux(length=20).draw(3, seed=0).tokens)
    torch.testing.assert_close(net(tokens), net.head(net.backbone(net.embedding(tokens))[0][:, -1]))


def test_the_learning_rate_rises_and_falls_to_nothing() -> None:
    training = ProbeTraining(steps=1000, warmup=10, lr=1.0)
    assert training.rate(0) == pytest.approx(0.1)
    assert training.rate(9) == pytest.approx(1.0, abs=1e-3)
    assert training.rate(999) < 1e-4


def test_sequences_grow_by_doubling_to_the_tasks_length() -> None:
    training = ProbeTraining(steps=1000, growing=0.3, first=16)
    lengths = [training.stage(Parity(length=128), step).length for step in range(0, 1000, 50)]
    assert lengths == [16, 16, 32, 32, 64, 64] + [128] * 14
    assert training.growths(Parity(length=128)) == [100, 200, 300]
    assert training.stage(VariableTracking(length=128), 0).length == 19  # no shorter than the task can be
    assert training.stage(Parity(length=12), 0).length == 12
    assert ProbeTraining(growing=0).stage(Parity(length=128), 0).length == 128
    assert [training.stage(Parity(length=100), step).length for step in (0, 100, 200, 300)] == [16, 25, 50, 100]


def test_a_diverged_run_says_so() -> None:
    with pytest.raises(InputError, match="the loss is nan by step 3: try a smaller lr"):
        run_probe(TASK, ProbeModelConfig(), replace(SHORT, lr=float("inf")))


def test_a_result_survives_json() -> None:
    result, _ = run_probe(TASK, ProbeModelConfig(), SHORT)
    assert ProbeResult.from_json(json.loads(json.dumps(asdict(result)))) == result


@pytest.fixture
def jobs() -> list[Job]:
    settings = ProbeSettings(length=8, training=SHORT)
    return [Job(task="parity", mixer=name, seed=0, settings=settings) for name in ("prism", "prism:steps=1")]


def test_what_is_done_is_not_done_again(jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_jobs(jobs[:1], tmp_path)
    ran = []
    real = Job.run
    monkeypatch.setattr(Job, "run", lambda job: ran.append(job) or real(job))
    both = run_jobs(jobs, tmp_path)
    assert ran == jobs[1:]
    assert both[jobs[0]] == first[jobs[0]]


def test_results_of_other_settings_are_refused_not_mixed(jobs: list[Job], tmp_path: Path) -> None:
    run_jobs(jobs[:1], tmp_path)
    other = replace(jobs[0], settings=replace(jobs[0].settings, dim=8))
    with pytest.raises(InputError, match="dim is 16 there and 8 here; choose another --out"):
        run_jobs([other], tmp_path)
    jobs[0].path(tmp_path).write_text("{")
    with pytest.raises(InputError, match=r"cannot be read .*: remove it, and it will be run again"):
        run_jobs(jobs[:1], tmp_path)


def test_the_command_writes_table_curves_and_one_json_per_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ProbeSettings(length=8, training=SHORT)
    with pytest.raises(InputError, match="device 'tpu7' cannot be used"):
        probe(("parity",), mixers=("prism",), settings=settings, device="tpu7", out=tmp_path)
    probe(("parity",), mixers=("prism",), seeds=2, settings=settings, device="cpu", threads=1, out=tmp_path)
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["curves.png", "prism-0.json", "prism-1.json", "table.txt"]
    table = (tmp_path / "table.txt").read_text()
    assert "±" in table
    assert "[1.00]" in table  # the paper's
    assert table in capsys.readouterr().out
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    probe(("parity",), mixers=("prism", "gla"), seeds=3, settings=settings, only_finished=True, out=tmp_path)
    assert table in capsys.readouterr().out  # nothing was run, and what is not there has no column
    with pytest.raises(InputError, match="holds none of these runs: leave --only-finished out"):
        probe(("parity",), mixers=("gla",), settings=settings, only_finished=True, out=tmp_path)


def test_a_cell_tells_mean_spread_and_how_many_seeds_solved_it() -> None:
    base = ProbeResult(accuracy=0.9, solved_at=None, steps=10, seconds=1, parameters=1, curve=[])
    runs = [base, replace(base, accuracy=1.0, solved_at=1200)]
    assert cell("xor", "prism", runs) == ("0.950 ± 0.071 [1.00]", "solved at 1,200 (1/2 seeds)")
    assert cell("xor", "gla", [base]) == ("0.900", "not solved")
    assert paper_accuracy("silence-gate", "prism") == 0.66
    assert set(PROBING) == set(probing.PAPER_PROBES)


def test_a_recipe_is_where_the_other_options_start(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ProbeSettings] = []
    monkeypatch.setattr(Job, "settings_json", lambda job: seen.append(job.settings))
    monkeypatch.setattr(probing, "run_jobs", lambda jobs, *rest: {job: job.settings_json() for job in jobs})
    monkeypatch.setattr(probing, "show_table", lambda found: "")
    monkeypatch.setattr(probing, "write_whole", lambda *_: None)
    monkeypatch.setattr(probing, "write_curves", lambda *_: None)
    monkeypatch.setattr(probing, "has_lengths", lambda found: False)
    cli.main(["probe", "mqar", "--mixers", "prism"])
    cli.main(["probe", "mqar", "--mixers", "prism", "--recipe", "released", "--steps", "1500"])
    probe(("mqar",), mixers=("prism",), recipe="released")
    ours, shorter, released = seen
    assert ours == ProbeSettings()
    assert released == RECIPES["released"]
    assert shorter == replace(released, training=replace(released.training, steps=1500))


def test_the_released_recipe_trains_at_one_rate_on_short_memories() -> None:
    released = RECIPES["released"]
    assert {released.training.rate(step) for step in (0, 10, 9999)} == {1e-3}
    assert (released.probe("mqar").length, released.probe("xor").length) == (64, 128)
    model = released.model(released.probe("mqar"), "prism")
    assert (model.dim, model.ffn) == (128, 341)


def test_what_is_tested_at_other_lengths_is_watched_at_the_next_of_them() -> None:
    assert watching(TASK, SHORT, seed=0).tokens.shape == (32, 8)
    longer = watching(RunningParity(length=4), SHORT, seed=0)
    assert longer.tokens.shape == (8, 16)
    tested = RunningParity(length=16).draw(8, seed=0, split="test", batch=1)
    assert not np.array_equal(longer.tokens, tested.tokens)


def test_a_decay_that_is_no_fraction_is_refused() -> None:
    with pytest.raises(InputError, match=r"beta2 must be in \[0, 1\), got 1.5"):
        ProbeTraining(beta2=1.5)


def test_unknown_names_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown probe 'xorr': did you mean 'xor'"):
        probe(("xorr",), out=tmp_path)
    with pytest.raises(InputError, match="unknown mixer 'prisma': did you mean 'prism'"):
        probe(("xor",), mixers=("prisma",), out=tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="mixers is empty: name at least one"):
        probe(("xor",), mixers=(), out=tmp_path)
    with pytest.raises(InputError, match="file is a file: give a folder"):
        probe(("xor",), mixers=("linear-attention",), out=tmp_path / "file")


@pytest.mark.parametrize(
    "field", ["dim", "memory_dim", "tracking_dim", "layers", "tracking_layers", "heads", "length", "tracking_length"]
)
def test_a_model_or_task_of_no_size_is_refused(field: str) -> None:
    with pytest.raises(InputError, match=f"{field} must be at least 1, got 0"):
        ProbeSettings(**{field: 0})


def test_a_task_can_be_spelled_with_fields_of_its_own() -> None:
    spelled = ProbeSettings(memory_length=40).probe("multi-value-recall:roles=4,pairs=3")
    assert spelled == MultiValueRecall(length=40, roles=4, pairs=3)
    assert spelled_probe("s3:length=8").length == 8
    assert spelled_probe("modular-counting:modulus=4").chance == 0.25
    job = Job(task="mqar:pairs=8", mixer="prism:steps=4", seed=1, settings=ProbeSettings())
    assert job.path(Path("out")) == Path("out/mqar@pairs=8/prism@steps=4-1.json")
    with pytest.raises(InputError, match="probe mqar has no field 'pears': did you mean 'pairs'"):
        spelled_probe("mqar:pears=8")
    with pytest.raises(InputError, match="probe 'mqar:8': '8' is not field=value"):
        spelled_probe("mqar:8")


def test_every_update_sees_as_many_tokens() -> None:
    training = ProbeTraining(steps=96, batch=4, growing=0.66, first=8)
    sizes = [tokens.shape for tokens, _ in batches(Parity(length=32), training, seed=0)]
    assert len(sizes) == 96
    assert {shape.numel() for shape in sizes} == {4 * 32}
    assert [shape[1] for shape in sizes[::32]] == [8, 16, 32]
