"""`prism demo`: train three recommenders on the shipped purchases, compare them with simple ones, write a report."""

import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from prism.config import at_least
from prism.display.tables import show
from prism.display.text import plain_lines
from prism.errors import needs
from prism.files import write_whole
from prism.machine import machine, pick_device, use_threads
from prism.recommend.commands.program import program
from prism.recommend.config import FitConfig
from prism.recommend.data.known import load, statistics_table
from prism.recommend.data.log import Log
from prism.recommend.data.splits import GlobalTime, Queries, Split
from prism.recommend.defaults import facts_of
from prism.recommend.demo.findings import LABELS, Customer, Question, customers, leads_sentence, verdict
from prism.recommend.demo.report import Report, TrainedModel, write_report
from prism.recommend.evaluation.baselines import BASELINES, usable
from prism.recommend.evaluation.ranking import Evaluation, evaluate
from prism.recommend.evaluation.tables import show_evaluations
from prism.recommend.recommender import Recommender
from prism.recommend.training.task import BatchConfig
from prism.train.checkpoints import newest
from prism.train.config import TrainConfig
from prism.train.jobs import at_once, run_all
from prism.train.journal import read_journal

MIXERS = ("prism", "gated-deltanet", "sasrec")
METRIC = "ndcg@10"
# What is not said here is chosen by the rules of `defaults.py`, as for any log; without a rehearsal, which six models
# would take minutes for.
CONFIG = FitConfig(
    rehearsal=False,
    cutoffs=(10, 50),
    batching=BatchConfig(valid_queries=1000),
    train=TrainConfig(epochs=2, lr=0.0),
)
SECONDS = "seconds.json"


@dataclass(frozen=True)
class Trained:
    """A model of the comparison and how it came about."""

    recommender: Recommender
    folder: Path
    seconds: float
    """Of training, over all times it was started."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """One model to train in its folder; continued if it was begun."""

    name: str
    config: FitConfig
    log: Log
    folder: Path
    progress: bool
    device: str | None

    def run(self) -> None:
        """Trains it; its seconds are kept even if it is stopped."""
        before, started = newest(self.folder, "last"), time.monotonic()
        try:
            Recommender.fit(self.log, self.config, out=self.folder, progress=self.progress, device=self.device)
        finally:
            if newest(self.folder, "last") != before:  # else it had been trained before
                spent = _read_seconds(self.folder) + time.monotonic() - started
                write_whole(self.folder / SECONDS, json.dumps(spent).encode())


def demo(
    out: Path = Path("prism-demo"),
    data: str = "online-retail",
    epochs: int = CONFIG.train.epochs,
    seed: int = 0,
    device: str | None = None,
    threads: int | None = None,
) -> None:
    """Trains PRISM, Gated DeltaNet and SASRec on real purchases, compares, recommends, writes an HTML report.

    Each is trained as `prism fit` does, with the simple experts, and alone. About four minutes on two cores. Stopped
    and started again, it goes on where it was.

    Args:
        out: Folder for the six runs and the report.
        data: The shipped purchases, or a log of your own: a CSV, TSV, Parquet or JSON-lines file.
        epochs: Passes over the training events.
        seed: Seed of the first weights, the order of batches and dropout.
        device: Where the models run, e.g. cpu or cuda; default: a GPU where there is one.
        threads: Threads of each model; default: one, and as many models at a time as there are cores.
    """
    at_least("epochs", epochs, 1)
    use_threads(threads)
    processes = at_once(pick_device(device), threads)
    needs("jinja2", "matplotlib", extra="plots")  # for the report: not after minutes of training
    log = load(data)
    config = replace(CONFIG, train=replace(CONFIG.train, epochs=epochs, seed=seed))
    typed = sys.argv[1:] if Path(sys.argv[0]).name == "prism" else ["demo"]
    path = run_demo(
        log,
        config,
        out,
        command=f"{program()} {shlex.join(typed)}",
        processes=processes,
        device=device,
        threads=threads,
    )
    say("")
    say(f"report: {path.resolve()} (open it in a browser)")
    say_next(out, log)


def run_demo(
    log: Log,
    config: FitConfig,
    out: Path,
    *,
    command: str,
    progress: bool = True,
    processes: int = 1,
    device: str | None = None,
    threads: int | None = None,
) -> Path:
    """Everything the command does, with any log and config; gives the report's path."""
    started = time.monotonic()
    divided = GlobalTime().split(log)
    say("\n".join([statistics_table(log), divided.describe()]))
    trained = train_all(log, config, out, progress=progress, processes=processes, device=device, threads=threads)
    evaluated = time.monotonic()
    returns = GlobalTime(targets="first").split(log).test
    questions = ask(divided, returns, trained)
    people = customers(trained["prism"].recommender, returns)
    for question in questions:
        show_question(question)
    for customer in people:
        show_customer(customer)
    seconds = {f"training {LABELS[name]}": one.seconds for name, one in trained.items()}
    seconds["evaluation and recommendations"] = time.monotonic() - evaluated
    say(f"{time.monotonic() - started:.0f} s in all")
    report = Report(
        log=log,
        split=divided,
        questions=questions,
        metric=METRIC,
        models=[described(name, one) for name, one in trained.items()],
        customers=people,
        command=command,
        config=config,
        machine=machine(),
        seconds=seconds,
    )
    return write_report(out / "report.html", report)


def train_all(
    log: Log,
    config: FitConfig,
    out: Path,
    *,
    progress: bool,
    processes: int,
    device: str | None = None,
    threads: int | None = None,
) -> dict[str, Trained]:
    """Each mixer with the experts, then each alone; `processes` at a time, which then show no progress."""
    systems = {mixer: replace(config, mixer=mixer) for mixer in MIXERS}
    systems |= {f"{mixer}-alone": replace(one, experts=()) for mixer, one in systems.items()}
    runs = [
        Training(name=name, config=one, log=log, folder=out / name, progress=progress and processes == 1, device=device)
        for name, one in systems.items()
    ]
    if progress:
        _, chosen = config.resolve(facts_of(GlobalTime().split(log)))
        say("\n".join(map(str, chosen)))
        say(f"\ntraining {len(runs)} models in {out}, {processes} at a time")
    for run, _ in run_all(runs, processes, threads):
        if progress:
            say(f"  {LABELS[run.name]}: {_read_seconds(run.folder):.0f} s")
    return {
        run.name: Trained(Recommender.load(run.folder, device=device), run.folder, _read_seconds(run.folder))
        for run in runs
    }


def ask(divided: Split, returns: Queries, trained: Mapping[str, Trained]) -> list[Question]:
    """Both questions to the models and to the simple baselines."""
    log, test = divided.log, divided.test
    scorers: dict[str, Any] = {name: one.recommender.scorer for name, one in trained.items()}
    scorers |= {name: BASELINES[name]().fit(divided.train) for name in usable(divided.train)[0]}
    cutoffs = next(iter(trained.values())).recommender.config.ranks

    def everyone(queries: Queries) -> dict[str, Evaluation]:
        return {name: evaluate(scorer, log, queries, cutoffs=cutoffs) for name, scorer in scorers.items()}

    tied = float(np.mean(log.times[test.positions] == log.times[test.positions - 1]))
    every = (
        f"Every event after the cut-off is asked about, given all events before it: {len(test):,} queries, as "
        f"`prism evaluate` asks them. {tied:.0%} of them share their time with the customer's event before."
        + (" So this asks mostly how a basket goes on." if tied > 0.5 else "")
    )
    first = (
        f"Only a customer's first event after the cut-off is asked about: {len(returns):,} queries, one per customer, "
        "none of them helped by the basket that it opens."
    )
    return [
        Question(title="The next item", about=every, found=everyone(test)),
        Question(title="The first item of the next visit", about=first, found=everyone(returns)),
    ]


def described(name: str, one: Trained) -> TrainedModel:
    """What the report says about a trained model."""
    model = one.recommender.model
    return TrainedModel(
        name=name,
        parameters=sum(weight.numel() for weight in model.parameters()),
        context=one.recommender.context,
        seconds=one.seconds,
        journal=read_journal(one.folder / "log.jsonl"),
    )


def show_question(question: Question) -> None:
    """The table and who wins."""
    say("")
    found = {LABELS[name]: evaluation for name, evaluation in question.found.items()}
    show_evaluations(question.title, found)
    say(f"{question.about}\n{METRIC.upper()}: {verdict(question, METRIC).sentence()}")
    say(leads_sentence(question, METRIC))


def show_customer(customer: Customer) -> None:
    """Recent purchases on the left, recommendations on the right."""
    hits = sum(one.bought_later for one in customer.suggestions)
    rows, left = [], [name for _, name in customer.recent]
    for n, (bought, one) in enumerate(zip_longest(left, customer.suggestions)):
        recommended, mark = ("", "") if one is None else (one.name, "✓" if one.bought_later else "")
        rows.append([str(n + 1), bought or "", recommended, mark])
    say("")
    show(
        f"customer {customer.user}, back on {customer.returned} after {customer.events:,} purchases",
        ["", "bought last, latest first", "PRISM recommends", ""],
        rows,
        caption=f"✓ bought from then on: {hits} of {len(customer.suggestions)} recommended, {customer.later:,} in all",
        left=range(4),
    )


def say_next(out: Path, log: Log) -> None:
    """Commands for one's own log."""
    run, prism = shlex.quote(str(out / "prism")), program()
    say("next, with the model just trained and with a log of your own (columns user, item, time):")
    say(f"  {prism} recommend {run} --user {shlex.quote(str(log.user_ids[0]))}")
    say(f"  {prism} fit events.csv --out runs/mine")
    say(f"  {prism} evaluate runs/mine")
    say(f"  {prism} recommend runs/mine --all recommendations.parquet")


def say(text: str) -> None:
    """A line at once, also into a pipe."""
    print(plain_lines(text), flush=True)


def _read_seconds(folder: Path) -> float:
    try:
        return float(json.loads((folder / SECONDS).read_text()))
    except (OSError, ValueError, TypeError):  # lost times spoil no result
        return 0.0
