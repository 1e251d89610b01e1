"""`prism paper language`, `language-ablation`: the paper's models, small, on one text; equal tokens and parameters."""

import shutil
import time
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import torch
from tyro.conf import OmitArgPrefixes

from prism.config import one_of
from prism.errors import DivergedError, InputError
from prism.lm.data.shards import read_shards
from prism.lm.data.text import read_documents
from prism.lm.data.tokenizer import load_tokenizer
from prism.lm.evaluation.harness import TASKS, average, check_harness, run_harness, task_files
from prism.lm.evaluation.perplexity import perplexity
from prism.lm.files import load_language_model, quiet
from prism.lm.hf.model import PrismSequenceForCausalLM
from prism.lm.learner import Learner
from prism.lm.recipes import ABLATIONS
from prism.lm.task import LanguageTask
from prism.lm.train import file_names, first_characters, keep_tokenizer, pack, save_model
from prism.models.matching import count_parameters
from prism.paper.language.report import LanguageRun, Runs, write_report
from prism.paper.language.settings import Study, StudySettings, Texts, study_model
from prism.printed import PARAMETERS
from prism.train.folder import own_folder
from prism.train.jobs import run_jobs
from prism.train.journal import read_journal
from prism.train.loop import train
from prism.train.settings import keep_settings

# The ablation's row that is a model of the other table: one run serves both.
SAME = {"full": "prism"}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: a model and a seed."""

    name: str
    seed: int
    settings: StudySettings
    texts: Texts
    data_dir: Path | None
    out: Path

    @property
    def folder(self) -> Path:
        """Of its checkpoints and, at the end, its model."""
        return self.out / f"{self.name.replace(' ', '-').replace(':', '@')}-seed{self.seed}"

    def path(self, out: Path) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")  # a name may hold dots

    def settings_json(self) -> dict[str, Any]:
        """What must be the same for a result to be this run's."""
        asked = [] if self.data_dir is None else list(task_files(TASKS, self.data_dir))
        own = {"model": self.name, "seed": self.seed, "texts": self.texts.names(), "tasks": asked}
        return own | {"settings": asdict(self.settings)}

    def task(self) -> LanguageTask:
        """Windows in an order that depends on the seed, not on the model."""
        shards = {name: read_shards(self.out / "tokens" / name) for name in ("train", "valid")}
        s = self.settings
        return LanguageTask.of(s, **shards, rounds=s.rounds, valid_windows=s.valid_windows, seed=self.seed)

    def run(self) -> LanguageRun:
        """Trains where it stopped, if it did, and measures."""
        quiet()
        start = time.process_time()
        if not (self.folder / "model").is_dir():
            try:
                self._train()
            except DivergedError as error:
                return self._diverged(str(error), time.process_time() - start)
        lm, _ = load_language_model(self.folder / "model")
        log = read_journal(self.folder / "log.jsonl")
        size = self.settings.batch * self.settings.length
        curve = [(line["step"] * size, line["valid/perplexity"]) for line in log if "valid/perplexity" in line]
        metrics = {"valid": min(value for _, value in curve)} | self._measure(lm)
        return LanguageRun(
            parameters=sum(weight.numel() for weight in lm.parameters()),
            cpu_seconds=round(time.process_time() - start, 1),
            curve=tuple(curve),
            metrics=metrics,
        )

    def _diverged(self, reason: str, seconds: float) -> LanguageRun:
        """A run that came to no end is a result: its perplexities are infinite."""
        texts = [name for name in ("test", "other") if getattr(self.texts, name)]
        names = ["valid", *texts, *(f"{name}_bits" for name in texts)]
        vocabulary = len(load_tokenizer(self.out / "tokenizer"))
        model = study_model(self.name, self.settings, vocabulary)
        count = count_parameters(lambda: PrismSequenceForCausalLM(model))
        infinite = dict.fromkeys(names, inf)
        return LanguageRun(parameters=count, cpu_seconds=round(seconds, 1), curve=(), metrics=infinite, diverged=reason)

    def _train(self) -> None:
        tokenizer, task = load_tokenizer(self.out / "tokenizer"), self.task()
        config = study_model(self.name, self.settings, len(tokenizer))
        end = tokenizer.eos_token_id
        config.update({"bos_token_id": end, "eos_token_id": end, "pad_token_id": tokenizer.pad_token_id})
        torch.manual_seed(self.seed)
        lm = PrismSequenceForCausalLM(config)
        train(Learner(lm), task, self.settings.training(self.seed), out=self.folder, progress=False)
        save_model(self.folder / "model", lm, tokenizer)
        for checkpoint in (*self.folder.glob("last-*"), *self.folder.glob("best-*")):
            shutil.rmtree(checkpoint)  # four times the model's size, of no use any more

    def _measure(self, lm: Any) -> dict[str, float]:
        s, tokenizer = self.settings, load_tokenizer(self.out / "tokenizer")
        found: dict[str, float] = {}
        for name in ("test", "other"):
            if paths := getattr(self.texts, name):
                documents = first_characters(read_documents(paths), s.characters)
                measured = perplexity(lm, tokenizer, documents, context=s.length, stride=s.stride)
                found |= {name: measured.per_token, f"{name}_bits": measured.bits_per_byte}
        if self.data_dir is not None:
            with redirect_stderr(StringIO()):  # bars of several processes in one terminal
                scores = run_harness(lm, tokenizer, data_dir=self.data_dir, limit=s.limit)
            if "lambada_openai" in scores:
                found["lambada"] = scores["lambada_openai"]["perplexity"]
            if (accuracy := average(scores)) is not None:
                found["accuracy"] = accuracy
        return found

    def read(self, record: dict[str, Any]) -> LanguageRun:
        return LanguageRun.from_json(record)

    def line(self, result: LanguageRun) -> str:
        numbers = "  ".join(f"{name} {value:.3f}" for name, value in result.metrics.items())
        return f"{self.name:<15} seed {self.seed}  {numbers}  {result.cpu_seconds:.0f} s of one core"


STUDY = Study()


def language(models: tuple[str, ...] = tuple(PARAMETERS), study: OmitArgPrefixes[Study] = STUDY) -> None:
    """The paper's five language models, small, on one text: perplexity beside the paper's; run again, it continues.

    Writes language.txt and language.png.

    Args:
        models: Some of prism, gated-deltanet, mamba2, efla, pgdn; and other mixers with their fields, prism:literal,
            which stand in the table without a figure of the paper's.
        study: What is run, on what.
    """
    for name in models:
        if name not in PARAMETERS and ":" not in name:
            one_of("models", name, tuple(PARAMETERS))
    write_report("language", run_study(models, study), study.out, study.about())


def language_ablation(rows: tuple[str, ...] = tuple(ABLATIONS), study: OmitArgPrefixes[Study] = STUDY) -> None:
    """The paper's ablation of PRISM's depth and width, small, on one text, beside the paper's; run again, it continues.

    Writes language-ablation.txt and language-ablation.png.

    Args:
        rows: Some of full, 'shared keys', 'base keys', 'no residual', 'single step', gated-deltanet.
        study: What is run, on what.
    """
    for name in rows:
        one_of("rows", name, tuple(ABLATIONS))
    write_report("language-ablation", run_study(rows, study), study.out, study.about())


def run_study(names: tuple[str, ...], study: Study) -> Runs:
    """Every run of a table by (row, seed); what the study's folder holds is not run again."""
    settings, out = study.settings, study.out
    if not names:
        raise InputError("no models given: name at least one")
    for name in names:
        study_model(name, settings, settings.vocabulary)  # refuses sizes that do not fit one another
    texts = study.texts.found()
    if study.data_dir is not None:
        task_files(TASKS, study.data_dir)
        check_harness()
    with own_folder(out):
        return _run(names, study, texts)


def _run(names: tuple[str, ...], study: Study, texts: Texts) -> Runs:
    settings, out = study.settings, study.out
    _prepare(texts, settings, out)
    shared = {"settings": settings, "texts": texts, "data_dir": study.data_dir, "out": out}
    jobs = {
        (name, seed): Job(name=SAME.get(name, name), seed=seed, **shared)  # type: ignore[arg-type]
        for seed in range(study.seeds)
        for name in names
    }
    next(iter(jobs.values())).task()  # refuses a text too short for its windows
    found = run_jobs(list(jobs.values()), out, study.processes)
    return {key: found[job] for key, job in jobs.items()}


def _prepare(texts: Texts, settings: StudySettings, out: Path) -> None:
    """Tokenizer and tokens, made once; a folder with those of another study is refused."""
    quiet()
    names = texts.names()
    keep_settings(out, {name: names[name] for name in ("text", "valid")} | asdict(settings))
    tokenizer = keep_tokenizer(out / "tokenizer", None, lambda: read_documents(texts.text), settings.vocabulary)
    for name, paths in (("train", texts.text), ("valid", texts.valid)):
        documents = partial(read_documents, paths)
        shards = pack(out / "tokens" / name, tokenizer, documents, *names["text"], *file_names(paths))
        print(f"{name}: {shards.tokens:,} tokens", flush=True)
