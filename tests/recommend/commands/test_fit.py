"""The commands from a CSV to recommendations, and what they say to a mistake."""

from pathlib import Path

import polars as pl
import pytest
from support import tiny

from prism import cli
from prism.recommend.evaluation.baselines import BASELINES

SIZE = ["--dim", "16", "--layers", "1"]
SMALL = [*SIZE, "--batch", "8", "--length", "20", "--epochs", "1", "--protocol", "leave-one-out"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    tiny.log().frame().write_csv(folder / "log.csv")
    (folder / "x.csv").write_text("user,time\n1,2\n")
    cli.main(["fit", str(folder / "log.csv"), "--out", str(folder / "run"), *SMALL])
    cli.main(["export", str(folder / "run"), str(folder / "model")])
    return folder


def test_a_run_is_evaluated_beside_the_simple_baselines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["evaluate", str(folder / "run"), "--device", "cpu", "--threads", "1"])
    shown = capsys.readouterr().out
    rows = ("prism", *BASELINES)
    assert all(name in shown for name in (*rows, "on cpu, 1 thread(s)", "ndcg@10", " queries; mean over events"))


def test_a_run_with_other_cut_offs_is_evaluated_at_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["fit", str(folder / "log.csv"), "--out", str(folder / "others"), *SMALL, "--cutoffs", "3", "7"])
    capsys.readouterr()
    cli.main(["evaluate", str(folder / "others")])
    shown = capsys.readouterr().out
    assert "ndcg@3" in shown
    assert "ndcg@10" not in shown


def test_recommendations_for_a_user_a_history_and_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(folder / "run")
    cli.main(["recommend", run, "--user", "3", "--k", "4"])
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]) == 4
    cli.main(["recommend", run, "--history", "3", "nothing", "--allow", "5", "6"])
    shown = capsys.readouterr()
    assert "prism: note: 1 of 2 items of the history are unknown to the model and were skipped: 'nothing'" in shown.err
    assert len([line for line in shown.out.splitlines() if line.startswith("│")]) == 2
    cli.main(["recommend", run, "--all", str(folder / "all.parquet"), "--k", "2"])
    assert pl.read_parquet(folder / "all.parquet").columns == ["user", "rank", "item", "score"]


def test_a_table_of_items_gives_names_and_features(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pl.DataFrame(
        {"item": range(50), "title": [f"THING {n}" for n in range(50)], "kind": [n % 5 for n in range(50)]}
    )
    table.write_csv(folder / "items.csv")
    words = f"fit {folder}/log.csv --out {folder}/featured --items {folder}/items.csv --features kinds title:words"
    with pytest.raises(SystemExit):
        cli.main([*words.split(), *SMALL])
    assert "has no column 'kinds' of items: did you mean 'kind'?" in capsys.readouterr().err
    assert not (folder / "featured").exists()
    cli.main([*words.replace("kinds", "kind").split(), *SMALL])
    assert "items: 50 of 50 are in" in capsys.readouterr().out
    cli.main(["recommend", str(folder / "featured"), "--user", "3"])
    assert "THING" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fit nothing-here --out {0}/x", "'nothing-here' is neither a file nor a known data set"),
        ("fit {0}/log.csv --out {0}/x --mixer prizm", "unknown mixer 'prizm': did you mean 'prism'?"),
        ("fit {0}/log.csv --out {0}/x --lr -1", "lr must be at least 0, got -1.0"),
        ("fit {0}/log.csv --out {0}/run --dim 8", "run holds another run: dim is 16 there and 8 here"),
        ("evaluate {0}", "is not a run: it has no config.json"),
        ("recommend {0}/run", "give one of --user U, --history A B C, --all OUT.parquet"),
        ("recommend {0}/run --user nobody", "user 'nobody' is not in run"),
        ("recommend {0}/run --user 3 --k 0", "k must be a whole number of at least 1, got 0"),
        ("recommend {0}/run --user=--7", "user '--7' is not in run"),
        ("recommend {0}/run --user 007", "user '007' is not in run"),
        ("recommend {0}/run --all {0}/x", "a table is written as .parquet, .csv, .jsonl, got 'no suffix'"),
        ("recommend {0}/run --user 3 --device tpu7", "device 'tpu7' cannot be used"),
        ("recommend {0}/run --user 3 --threads 0", "threads must be a whole number of at least 1, got 0"),
        ("fit {0}/log.csv --out {0}/x --user who", "--user 'who' is not a column of"),
        ("fit {0}/x.csv --out {0}/x", "name it with --item"),
        ("compare {0}/log.csv --out {0}/x --mixers prism sasrek", "unknown mixer 'sasrek': did you mean 'sasrec'?"),
        ("compare {0}/log.csv --out {0}/x --device tpu7", "device 'tpu7' cannot be used"),
        ("compare {0}/log.csv --out {0}/x --threads 0", "threads must be a whole number of at least 1, got 0"),
        ("demo --out {0}/x --device tpu7", "device 'tpu7' cannot be used"),
        ("demo --out {0}/x --threads 0", "threads must be a whole number of at least 1, got 0"),
        ("compare {0}/log.csv --out {0}/x --seeds 0", "seeds must be at least 1, got 0"),
        (
            "fit {0}/log.csv --out {0}/x --lr much",
            "could not convert string to float: 'much'; `prism fit --help` shows",
        ),
        ("fit {0}/log.csv --out {0}/x --protocl y", "Unrecognized options: --protocl, y, did you mean --protocol?;"),
        ("evaluate", "Missing from prism evaluate: RUN"),
        ("because {0}/run 3", "e.g. --user 42 or --history 7 12"),
        ("refit {0}/nothing", "nothing is not a run: it has no config.json"),
        ("refit {0}/model", "model is an exported model: give the run that it was made from"),
        ("fit {0}/log.csv --out {0}/x --item-name x", "--item-name 'x' is a column of a table of items: give --items"),
        ("serve {0}/run --store {0}/x", "run is not an exported model: `prism export {0}/run MODEL` makes one"),
        ("serve {0}/x --store {0}/x", "x is not an exported model: `prism export RUN {0}/x` makes one of a run"),
        ("serve {0}/model --store {0}/x --port 99999", "port must be from 1 to 65535"),
        ("serve {0}/model --store {0}/x --port 65535 --shards 2", "port must be from 1 to 65535"),
        ("serve {0}/model --store {0}/x --timeout 0", "timeout must be above 0, got 0"),
        ("serve {0}/model --store {0}/x --max-body 0", "max_body must be at least 1, got 0"),
        ("serve {0}/model --store {0}/x --users-in-memory 9", "users_in_memory must be at least 2000, got 9"),
        (
            "serve {0}/model --store {0}/x --cors shop.example",
            "--cors 'shop.example' is no origin: give scheme and host",
        ),
        (
            "serve {0}/model --store {0}/x --cors https://a.b/",
            "--cors 'https://a.b/' is no origin: give scheme and host",
        ),
        ("serve {0}/model --store {0}/x --keys {0}/log.csv", "log.csv holds no keys"),
        ("serve {0}/model --store {0}/x --keys {0}/no", "no: No such file or directory; `prism serve-key {0}/no"),
        ("serve-key {0}/log.csv", "give a file that `prism serve-key` made"),
        ("serve {0}/model --store {0}/x --host 0.0.0.0", "give --keys, made by `prism serve-key FILE`"),
    ],
)
def test_a_mistake_is_one_line_exit_code_2_and_leaves_nothing(
    folder: Path, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    given = words.format(folder).split()
    with pytest.raises(SystemExit) as stop:
        cli.main(given + (SMALL[4:] if given[0] == "fit" else []))
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert message.format(folder) in said
    assert said.count("\n") == 1
    assert not (folder / "x").exists()


def test_a_table_of_items_without_names_has_no_column_for_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    cli.main(["recommend", str(folder / "run"), "--user", "3"])
    head = next(line for line in capsys.readouterr().out.splitlines() if "rank" in line)
    assert "item" in head
    assert "name" not in head


def test_an_output_that_cannot_be_written_is_said_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["recommend", str(folder / "run"), "--all", str(folder / "log.csv" / "all.parquet")])
    assert "cannot write" in capsys.readouterr().err
