"""`prism demo` on a small log: it trains, compares, recommends, and goes on where it was stopped."""

import json
import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prism import cli
from prism.errors import InputError
from prism.recommend.data.log import Log
from prism.recommend.data.splits import GlobalTime
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.demo import command as demo
from prism.recommend.demo.findings import LABELS, customers
from prism.recommend.recommender import Recommender
from prism.recommend.training.task import BatchConfig
from prism.train.config import TrainConfig

CONFIG = replace(
    demo.CONFIG,
    dim=16,
    layers=1,
    batching=BatchConfig(batch=8, length=20, windows="all"),
    train=TrainConfig(epochs=1, lr=3e-3, log_steps=3),
)


def visits() -> Log:
    """Sixty customers whose events are spread over the whole year, so that most come back after the cut-off."""
    log = synthetic_log(60, 50, 2000)
    times = np.concatenate([np.linspace(0, 3e7, n).astype(np.int64) for n in log.lengths])
    names = np.array([f"PRODUCT <{n}> & CO" for n in range(log.n_items)], dtype=object)
    return replace(log, times=1_290_000_000 + times, item_names=names)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    demo.run_demo(visits(), CONFIG, out, command="prism demo", progress=False)
    return out


def test_it_prints_every_system_on_both_questions_and_three_customers(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.run_demo(visits(), CONFIG, finished, command="prism demo", progress=False)
    shown = capsys.readouterr().out
    for label in LABELS.values():
        assert len(re.findall(rf"│ {re.escape(label)} +│", shown)) == 2, label
    assert shown.count("NDCG@10: ") == 2
    assert shown.count("customer ") >= 3
    assert shown.count("bought from then on") == 3


def test_each_run_is_one_that_the_other_commands_take(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mixer in demo.MIXERS:
        mixed, alone = (Recommender.load(finished / name).config for name in (mixer, f"{mixer}-alone"))
        assert mixed.mixer == alone.mixer == mixer
        assert mixed.experts
        assert alone.experts == ()
    cli.main(["evaluate", str(finished / "prism"), "--no-baselines"])
    assert "hit@10" in capsys.readouterr().out


def test_the_table_is_that_of_evaluate(finished: Path) -> None:
    made = Recommender.load(finished / "prism")
    split = GlobalTime().split(visits())
    trained = {"prism": demo.Trained(made, finished / "prism", 0.0)}
    every, first = demo.ask(split, GlobalTime(targets="first").split(visits()).test, trained)
    assert every.found["prism"]["ndcg@10"] == made.evaluate()["ndcg@10"]
    assert every.found["item-knn"]["mrr"] == made.evaluate_baselines()["item-knn"]["mrr"]
    assert len(first.found["prism"].ranks) == len(np.unique(first.found["prism"].users))


def test_a_second_start_trains_nothing_again(finished: Path) -> None:
    before = sorted(finished.glob("*/best-*"))
    seconds = {path: path.read_text() for path in finished.glob(f"*/{demo.SECONDS}")}
    demo.run_demo(visits(), CONFIG, finished, command="prism demo", progress=False)
    assert sorted(finished.glob("*/best-*")) == before
    assert {path: path.read_text() for path in seconds} == seconds
    assert len(seconds) == 2 * len(demo.MIXERS)


def test_other_settings_in_the_same_folder_are_refused(finished: Path) -> None:
    with pytest.raises(InputError, match="holds another run: dim is 16 there and 32 here; choose another folder"):
        demo.run_demo(visits(), replace(CONFIG, dim=32), finished, command="prism demo", progress=False)


def test_stopped_it_leaves_no_half_report_and_goes_on(tmp_path: Path) -> None:
    config = replace(CONFIG, train=replace(CONFIG.train, epochs=3, save_seconds=0))

    def stop() -> None:
        while not list(tmp_path.glob("prism/last-*")):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(visits(), config, tmp_path, command="prism demo", progress=False)
    thread.join()
    assert not list(tmp_path.rglob("*.part"))
    assert not (tmp_path / "report.html").exists()
    clock = tmp_path / "prism" / demo.SECONDS
    spent = json.loads(clock.read_text())
    assert demo.run_demo(visits(), config, tmp_path, command="prism demo", progress=False).exists()
    assert json.loads(clock.read_text()) > spent


def test_customers_are_asked_about_with_their_past_alone(finished: Path) -> None:
    made = Recommender.load(finished / "prism")
    returns = GlobalTime(targets="first").split(visits()).test
    for customer in customers(made, returns):
        code = made.log.user_code(customer.user)
        begin = int(made.log.offsets[code])
        past = made.log.items[begin : begin + customer.events]
        later = made.log.items[begin + customer.events : made.log.offsets[code + 1]]
        assert [name for _, name in customer.recent] == [made.log.item_label(item) for item in past[::-1][:8].tolist()]
        assert len(customer.suggestions) == 10
        assert customer.later == len(set(later.tolist()))
        bought = {made.log.item_label(item) for item in later.tolist()}
        assert [one.bought_later for one in customer.suggestions] == [
            one.name in bought for one in customer.suggestions
        ]
        # nothing after the moment of asking changes what is recommended
        times = made.log.times[begin : begin + customer.events]
        asked = int(made.log.times[begin + customer.events])
        found = made.recommend(history=made.log.item_ids[past], times=times, at=asked)
        assert [one.name for one in found] == [one.name for one in customer.suggestions]


@pytest.mark.parametrize("called", [".venv/bin/prism", "prism", "-m"])
def test_the_commands_to_go_on_with_are_called_as_it_was(
    called: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    installed = tmp_path / "prism"
    installed.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    # the shell hands over the whole path of what it found under a bare name, and Python that of the module
    monkeypatch.setattr("sys.argv", [{"prism": str(installed), "-m": "/src/prism/cli.py"}.get(called, called)])
    demo.say_next(tmp_path / "out", visits())
    first = capsys.readouterr().out.splitlines()[1]
    wanted = f"{sys.executable} -m prism.cli" if called == "-m" else called
    assert first.strip() == f"{wanted} recommend {tmp_path}/out/prism --user 0"


def test_a_wrong_number_of_epochs_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["demo", "--epochs", "0", "--out", str(tmp_path / "demo")])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "prism: epochs must be at least 1, got 0\n"
    assert not (tmp_path / "demo").exists()
