"""The language study: equal parameters, runs shared by both tables, resumption, what the tables say, mistakes."""

import json
import random
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")

from prism import cli
from prism.errors import DivergedError
from prism.files import only_one
from prism.lm.hf.model import PrismSequenceForCausalLM
from prism.lm.recipes import ABLATIONS
from prism.lm.task import LanguageTask
from prism.paper.language.command import Job
from prism.paper.language.report import (
    LanguageRun,
    differences,
    main_table,
    paper_figure,
    rows_of,
)
from prism.paper.language.settings import StudySettings, Texts, study_model
from prism.printed import PARAMETERS

SIZES = {"dim": 16, "layers": 1, "heads": 2, "vocabulary": 280, "length": 32, "batch": 2, "tokens": 512, "rounds": 2}
SMALL = [word for name, value in {**SIZES, "stride": 24, "seeds": 2}.items() for word in (f"--{name}", str(value))]
WORDS = ["the", "a", "cat", "dog", "sees", "likes", "red", "blue", "house", "tree", "runs", "to", "from", "and", "then"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)
    for name, documents in (("text", 60), ("valid", 10), ("test", 5), ("other", 5)):
        made = (" ".join(draw.choices(WORDS, k=40)) for _ in range(documents))
        (folder / f"{name}.txt").write_text("\f".join(made))
    return folder


def words(texts: Path, out: Path, *more: str) -> list[str]:
    files = [word for name in ("text", "valid", "test", "other") for word in (f"--{name}", str(texts / f"{name}.txt"))]
    return [*files, *SMALL, "--processes", "1", "--out", str(out), *more]


def language(texts: Path, out: Path, *more: str) -> None:
    cli.main(["paper", "language", "--models", "prism", "gated-deltanet", *words(texts, out, *more)])


@pytest.fixture(scope="module")
def done(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study")
    language(texts, out)
    return out


def test_all_models_of_both_tables_have_equal_parameters() -> None:
    settings = StudySettings()
    counts = {}
    for name in dict.fromkeys([*PARAMETERS, *ABLATIONS]):
        with torch.device("meta"):
            counts[name] = PrismSequenceForCausalLM(study_model(name, settings, settings.vocabulary)).num_parameters()
    assert max(counts.values()) < 1.02 * min(counts.values()), counts
    assert 2e6 < min(counts.values()) < 5e6


def test_full_is_prism() -> None:
    assert study_model("full", StudySettings(), 300).to_dict() == study_model("prism", StudySettings(), 300).to_dict()


def test_the_table_has_ours_with_spread_and_the_papers_beside(done: Path) -> None:
    text = " ".join((done / "language.txt").read_text().split())
    for printed in ("[138.06M]", "[19.25]", "[23.28]", "[34.68]", "minus prism", "± ", "2 seeds", "512 tokens"):
        assert printed in text, printed
    assert (done / "language.png").read_bytes()[:4] == b"\x89PNG"
    assert sorted(path.name for path in done.glob("*-seed*.json")) == [
        f"{name}-seed{seed}.json" for name in ("gated-deltanet", "prism") for seed in (0, 1)
    ]
    record = json.loads((done / "prism-seed1.json").read_text())
    assert [tokens for tokens, _ in record["curve"]] == [256, 512]
    assert record["metrics"]["valid"] == min(value for _, value in record["curve"])
    assert set(record["metrics"]) == {"valid", "test", "test_bits", "other", "other_bits"}


def test_the_ablation_takes_the_runs_that_the_other_table_left(
    done: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    real = Job.run
    monkeypatch.setattr(Job, "run", lambda job: ran.append((job.name, job.seed)) or real(job))
    rows = ["--rows", "full", "shared keys", "gated-deltanet"]
    cli.main(["paper", "language-ablation", *rows, *words(texts, done)])
    assert ran == [("shared keys", 0), ("shared keys", 1)]
    text = (done / "language-ablation.txt").read_text()
    for printed in ("minus full", "[34.69]", "[35.19]", "[+0.01]"):
        assert printed in text, printed


def test_a_run_stopped_in_the_middle_goes_on_as_if_it_had_not_been(
    done: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = LanguageTask.loss, []

    def stop(*given: object) -> object:
        calls.append(given)
        if len(calls) == 7:  # of 8 updates
            raise KeyboardInterrupt
        return real(*given)  # type: ignore[arg-type]

    one = ["--models", "prism", "--seeds", "1"]
    monkeypatch.setattr(LanguageTask, "loss", stop)
    with pytest.raises(SystemExit):
        language(texts, tmp_path, *one)
    assert not (tmp_path / "prism-seed0.json").exists()
    calls.clear()
    monkeypatch.setattr(LanguageTask, "loss", lambda *given: calls.append(given) or real(*given))
    language(texts, tmp_path, *one)
    assert len(calls) == 4  # from the end of the first round
    there, here = (json.loads((folder / "prism-seed0.json").read_text()) for folder in (done, tmp_path))
    assert here["curve"] == there["curve"]
    assert here["metrics"] == there["metrics"]


def test_the_order_of_data_depends_on_the_seed_alone(done: Path, texts: Path) -> None:
    named = Texts(**{name: (texts / f"{name}.txt",) for name in ("text", "valid", "test")})
    settings = StudySettings(**SIZES, stride=24)  # type: ignore[arg-type]

    def first(name: str, seed: int) -> list[list[int]]:
        job = Job(name=name, seed=seed, settings=settings, texts=named, data_dir=None, out=done)
        return job.task().batches(0)[0].tolist()

    assert first("prism", 0) == first("mamba2", 0) != first("prism", 1)


def test_any_mixer_stands_beside_the_papers_and_one_that_diverges_has_infinite_perplexity(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(job: Job) -> None:
        raise DivergedError("the loss is nan at step 1")

    real = Job._train
    monkeypatch.setattr(Job, "_train", lambda job: diverges(job) if "literal" in job.name else real(job))
    models = ["prism", "prism:forget=all", "prism:literal"]
    cli.main(["paper", "language", "--models", *models, *words(texts, tmp_path, "--seeds", "1")])
    table = (tmp_path / "language.txt").read_text()
    rows = {name: next(line for line in table.splitlines() if f" {name} " in line) for name in models}
    assert "inf" in rows["prism:literal"]
    assert "inf" not in rows["prism:forget=all"]
    assert "[" not in rows["prism:forget=all"]


def test_names_with_dots_have_files_of_their_own(tmp_path: Path) -> None:
    shared: dict = {"settings": StudySettings(), "texts": Texts(), "data_dir": None, "out": tmp_path}
    names = ("prism:strength_bias=3.0", "prism:strength_bias=3.5")
    jobs = [Job(name=name, seed=seed, **shared) for name in names for seed in (0, 1)]
    assert len({job.path(tmp_path) for job in jobs}) == 4


def test_two_studies_in_one_folder_take_turns_by_refusal(texts: Path, tmp_path: Path) -> None:
    with only_one(tmp_path / "out"), pytest.raises(SystemExit):
        language(texts, tmp_path / "out")


def test_differences_are_taken_seed_by_seed() -> None:
    values = {("full", 0): 10.0, ("full", 1): 20.0, ("base keys", 0): 11.0, ("base keys", 1): 21.5}
    runs = {
        key: LanguageRun(parameters=1, cpu_seconds=0.0, curve=((1, value),), metrics={"valid": value})
        for key, value in values.items()
    }
    (row,) = differences(runs)
    assert row.name == "base keys"
    assert row.mean("valid") == pytest.approx(1.25)
    assert row.spread("valid") == pytest.approx(0.5**1.5)
    assert [row.mean("valid") for row in rows_of(runs)] == [15.0, 16.25]
    assert main_table("language-ablation", runs).row_count == 2
    assert paper_figure("language-ablation", "base keys", "lambada") == 27.68
    assert paper_figure("language", "mamba2", "test") == 24.27
    assert paper_figure("language-ablation", "full", "valid") is None


def test_a_perplexity_of_nine_digits_is_printed_short() -> None:
    runs = {
        ("full", seed): LanguageRun(parameters=1, cpu_seconds=0.0, curve=((1, 1.0),), metrics={"lambada": value})
        for seed, value in enumerate((8.0e8, 9.0e8))
    }
    (cell,) = main_table("language-ablation", runs).columns[2].cells
    assert str(cell).startswith("8.5e+08 ± 7.1e+07")


def test_mistakes_are_one_line_and_exit_code_2(
    done: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*line: str) -> str:
        with pytest.raises(SystemExit) as stop:
            cli.main(["paper", *line])
        assert stop.value.code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        return lines[0]

    monkeypatch.setenv("PRISM_DATA", str(tmp_path))
    monkeypatch.setattr("prism.recommend.data.places.CACHE", tmp_path / "cache")
    files = words(texts, tmp_path / "out")
    given = ["--models", "prism", *files]
    known = ["--models", "prism", *words(texts, done)]
    assert "did you mean 'mamba2'" in refused("language", "--models", "mamba", *files)
    assert "rows must be one of full, shared keys" in refused("language-ablation", "--rows", "fewer", *files)
    assert "tokens must be at least 128" in refused("language", *given, "--tokens", "100")
    assert "stride must be from 1 to length = 32, got 40" in refused("language", *given, "--stride", "40")
    assert "heads" in refused("language", *given, "--heads", "3")
    assert "data set 'text' is not in" in refused("language")
    assert "--valid is missing" in refused("language", "--text", str(texts / "text.txt"))
    assert "none.txt does not exist" in refused("language", *given, "--other", str(tmp_path / "none.txt"))
    assert "is not a folder: name one with TASK.jsonl" in refused(
        "language", *given, "--data-dir", str(tmp_path / "no")
    )
    assert not (tmp_path / "out").exists()  # nothing half-written
    assert "holds another run: lr is" in refused("language", *known, "--lr", "1e-3")
    other = ["--other", str(texts / "test.txt")]
    assert "holds another run: other is [" in refused("language", *known, *other)
    assert "less than one window of length 4000" in refused("language", *given, "--length", "4000", "--tokens", "16000")
