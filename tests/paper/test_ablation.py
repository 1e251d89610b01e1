"""The component ablation on a small log: equal parameters, paired differences, nothing run twice."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support import tiny

from prism import cli
from prism.errors import InputError
from prism.models.matching import matched_ffn
from prism.paper.ablation.command import CONFIG, VARIANTS, parameters, run_ablation, without
from prism.paper.ablation.report import Answers, Measured, Part
from prism.printed import COMPONENT_ABLATION
from prism.recommend.data.splits import split
from prism.recommend.evaluation.baselines import BASELINES
from prism.recommend.recommender import Recommender

SMALL = replace(tiny.CONFIG, cutoffs=(5, 20), train=replace(tiny.CONFIG.train, epochs=1))
CHOSEN = ("full", "no-refinement", "no-anchor")
COUNT = len(list(BASELINES))


def run(out: Path) -> list[Part]:
    configs = {name: without(SMALL, name) for name in CHOSEN}
    return run_ablation(tiny.log(), SMALL, configs, seeds=2, processes=1, out=out, progress=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Part]]:
    out = tmp_path_factory.mktemp("ablation")
    return out, run(out)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, dim=96, mixer="prism:steps=4"), SMALL])
def test_all_variants_have_equal_parameters_within_two_percent(config) -> None:
    counts = {name: parameters(without(config, name), 1) for name in VARIANTS}  # one item: the table hides nothing
    for name, count in counts.items():
        assert abs(count / counts["full"] - 1) < 0.02, (name, count, counts["full"])


def test_a_variant_is_one_field_and_the_width_that_makes_up_for_it() -> None:
    full = without(CONFIG, "full")
    assert full.ffn == CONFIG.model().backbone.hidden
    for name in VARIANTS:
        differing = {line.split()[0] for line in without(CONFIG, name).differences(full)}
        assert differing <= {"mixer", "ffn"}
    assert len({without(CONFIG, name).mixer for name in VARIANTS}) == len(VARIANTS) == len(COMPONENT_ABLATION)


def test_a_mixer_too_large_for_its_match_is_refused() -> None:
    wide, narrow = (without(SMALL, name).model().backbone.mixers[0] for name in ("full", "no-refinement"))
    with pytest.raises(InputError, match="has more parameters than"):
        matched_ffn(wide, narrow, dim=16, ffn=1)


def test_every_variant_is_told_with_interval_spread_and_difference(
    finished: tuple[Path, list[Part]], capsys: pytest.CaptureFixture[str]
) -> None:
    out, parts = finished
    assert [part.name for part in parts] == [*BASELINES, *CHOSEN]
    run(out)
    shown = capsys.readouterr().out
    for part in parts[COUNT:]:
        one = part.values["hit@20"]
        assert f"{one.mean:.4f} ±{one.spread:.4f}" in shown
        assert f"{one.low:.4f} … {one.high:.4f}" in shown
        assert f"{part.parameters:,}" in shown
    lost = parts[COUNT + 1].differences["auc"]
    assert f"{lost.mean:+.4f} ±{lost.spread:.4f}" in shown
    assert "paper 0.7134" in shown
    assert "paper -0.0329" in shown


def test_differences_are_those_of_the_runs_and_their_intervals_are_paired(finished: tuple[Path, list[Part]]) -> None:
    out, parts = finished
    full, bare = parts[COUNT], parts[COUNT + 1]
    assert not full.differences
    for metric, one in bare.differences.items():
        assert one.mean == pytest.approx(bare.values[metric].mean - full.values[metric].mean)
        assert one.low <= one.mean <= one.high
        runs = [json.loads((out / f"{name}-seed1" / "test.json").read_text()) for name in ("no-refinement", "full")]
        assert one.seeds[1] == pytest.approx(runs[0][metric] - runs[1][metric])
    # against itself nothing differs, on any resampling
    same = Answers.read({0: out / "full-seed0" / "test.json"}, SMALL.cutoffs)
    assert all((one.low, one.mean, one.high) == (0, 0, 0) for one in same.minus(same).values())


def test_a_difference_is_clear_where_the_interval_and_all_seeds_agree() -> None:
    def clear(low: float, high: float, *seeds: float) -> bool:
        return Measured(mean=float(np.mean(seeds)), low=low, high=high, seeds=seeds).clear

    assert clear(-0.3, -0.1, -0.2, -0.2)
    assert not clear(-0.3, 0.1, -0.2, -0.2)
    assert not clear(-0.3, -0.1, -0.5, 0.1)
    assert not clear(-0.3, -0.1, -0.2)


def test_started_again_it_trains_nothing_and_says_the_same(
    finished: tuple[Path, list[Part]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, parts = finished
    monkeypatch.setattr(Recommender, "fit_split", None)
    assert run(out) == parts
    record = json.loads((out / "ablation.json").read_text())
    assert [part["name"] for part in record["parts"]] == [part.name for part in parts]
    assert len(pl.read_parquet(out / "full-seed0" / "test.parquet")) == len(split(tiny.log(), "leave-one-out").test)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--variants", "no-ancor"], "variants must be one of .*; got 'no-ancor', did you mean 'no-anchor'"),
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["online-retial"], "'online-retial' is neither a file nor a known data set: did you mean 'online-retail'"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["paper", "ablation", *words, "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message, said)
    assert not (tmp_path / "out").exists()
