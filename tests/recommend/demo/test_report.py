"""The report: every section, the measured numbers, no address outside itself, HTML that closes what it opens."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from prism.errors import InputError
from prism.recommend.config import FitConfig
from prism.recommend.data.splits import GlobalTime
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.demo.charts import VARIABLES, Line, Point, line_chart
from prism.recommend.demo.findings import (
    LABELS,
    Customer,
    Question,
    Suggestion,
    hit_curve,
    leads_sentence,
    length_groups,
    verdict,
)
from prism.recommend.demo.report import Report, TrainedModel, render, write_report
from prism.recommend.evaluation.baselines import BASELINES
from prism.recommend.evaluation.intervals import estimates
from prism.recommend.evaluation.metrics import Ranks, metric_values
from prism.recommend.evaluation.ranking import Evaluation, evaluate

VOID = {"meta", "br"}


class Checker(HTMLParser):
    """Fails where a tag is closed that is not the one last opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["h2"]:
            self.headings.append(data)


def ranked(above: np.ndarray, users: np.ndarray, lengths: np.ndarray) -> Evaluation:
    ranks = Ranks(above=above, tied=np.ones_like(above), candidates=np.full_like(above, 300))
    values = metric_values(ranks, (10, 50))
    means = estimates(values, users, samples=100)
    return Evaluation(ranks=ranks, users=users, history_lengths=lengths, values=values, means=means, cold=3)


def report() -> Report:
    split = GlobalTime().split(synthetic_log(60, 50, 2000))
    rng = np.random.default_rng(0)
    users, lengths = np.arange(200) // 4, rng.integers(1, 700, 200)
    found = {name: ranked(rng.integers(0, 20 * (n + 1), 200), users, lengths) for n, name in enumerate(LABELS)}
    base = {
        name: evaluate(BASELINES[name]().fit(split.train), split.log, split.test, cutoffs=(10, 50))
        for name in BASELINES
    }
    journal = [
        {"step": 1, "epoch": 0.5, "loss": 5.25},
        {"step": 2, "epoch": 1.0, "loss": 4.75},
        {"step": 2, "epoch": 1, "valid/ndcg@10": 0.125},
    ]
    customer = Customer(
        user="<b>eve</b>",
        events=12,
        returned="2011-11-09",
        recent=[("2011-11-01", "TEA & <CAKE>")],
        suggestions=[Suggestion(name='A "QUOTED" CUP', bought_later=True, bought_before=False)],
        later=4,
    )
    return Report(
        log=split.log,
        split=split,
        questions=[
            Question(title="The next item", about="All of them, as `prism evaluate` does.", found=found),
            Question(title="The first item of the next visit", about="One each.", found=base),
        ],
        metric="ndcg@10",
        models=[
            TrainedModel(name=n, parameters=123_456, context=c, seconds=12.3, journal=journal)
            for n, c in (("prism", None), ("sasrec", 100))
        ],
        customers=[customer],
        command="prism demo --out 'my <folder>'",
        config=FitConfig(cutoffs=(10, 50), dropout=0.2),
        machine={"cpu": "An <odd> CPU", "cores": 2},
        seconds={"training PRISM": 61.4, "evaluation": 20.0},
    )


@pytest.fixture(scope="module")
def made() -> Report:
    return report()


@pytest.fixture(scope="module")
def page(made: Report) -> str:
    return render(made)


def test_the_page_has_every_section_and_closes_what_it_opens(page: str) -> None:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert checker.headings == [
        "Metrics", "Learning curves", "Hit@K", "By history length", "Three customers", "What was run",
    ]  # fmt: skip
    assert page.count('class="chart"') == 4 + 2 + 2 + 2 + 2 + 2 * len(LABELS)  # the last two: legends


def test_the_page_needs_nothing_from_elsewhere(page: str) -> None:
    assert not re.search(
        r"https?:|//[a-z]|src=|href=[^#]|@import|url\([^#]|<script|<link|<img", page.replace('="#', "=#")
    )


def test_what_a_chart_points_at_is_in_the_page_and_no_id_stands_for_two_things(page: str) -> None:
    things: dict[str, set[str]] = {}
    for name, content in re.findall(r'<(?:path|clipPath) id="([^"]+)"(.*?)</defs>', page, re.DOTALL):
        things.setdefault(name, set()).add(content.split("<")[0])
    asked = set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page))
    assert asked
    assert asked <= set(re.findall(r' id="([^"]+)"', page))
    assert all(len(found) == 1 for found in things.values())


def test_every_colour_of_a_chart_is_one_of_the_pages(page: str) -> None:
    for chart in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert not re.findall(r"(?:fill|stroke): ?#\w+", chart)
    for variable in VARIABLES.values():
        assert page.count(f"--{variable}:") == 2, variable  # light and dark


def test_more_systems_than_colours_are_still_drawn_apart() -> None:
    lines = [Line(label=str(n), style=n, points=[Point(x=1, y=n), Point(x=2, y=n)]) for n in range(21)]
    drawn = re.findall(r"style=\"fill: none;([^\"]*stroke-width: 2.2[^\"]*)", line_chart(lines, x_label="", y_label=""))
    assert len(set(drawn)) == len(drawn) == 21


def test_the_tables_hold_the_measured_numbers(page: str, made: Report) -> None:
    for question in made.questions:
        for evaluation in question.found.values():
            for one in evaluation.means["event"].values():
                assert f">{one.mean:.4f}<small>{one.low:.3f} – {one.high:.3f}</small>" in page


def test_curves_hold_the_measured_numbers(page: str, made: Report) -> None:
    question = made.questions[0]
    for name, evaluation in question.found.items():
        share = float(np.mean(evaluation.ranks.above < 10))
        assert dict(hit_curve(evaluation, 10))[10] == pytest.approx(share)
        for k, y in hit_curve(evaluation, 200):
            assert f"{LABELS[name]}: Hit@{k} = {y:.4f}" in page
        for group, inside in length_groups(evaluation):
            mean = evaluation.values["ndcg@10"][inside].mean()
            assert f"{LABELS[name]}: {group} events, {int(inside.sum()):,} queries: {mean:.4f}" in page
    assert ">PRISM: 5.2500<" in page
    assert ">SASRec: 0.1250<" in page


def test_length_groups_cover_every_query_once(made: Report) -> None:
    evaluation = made.questions[0].found["prism"]
    together = sum(inside.astype(int) for _, inside in length_groups(evaluation, least=0))
    assert (together == 1).all()


def test_text_from_the_data_is_text_on_the_page(page: str) -> None:
    assert "&lt;b&gt;eve&lt;/b&gt;" in page
    assert "TEA &amp; &lt;CAKE&gt;" in page
    assert "A &#34;QUOTED&#34; CUP" in page
    assert "An &lt;odd&gt; CPU" in page
    assert "my &lt;folder&gt;" in page
    assert "<b>eve" not in page


def test_what_was_run_is_told(page: str) -> None:
    assert "123,456 parameters, sees the whole history" in page
    assert "123,456 parameters, sees the last 100 events" in page
    assert "61 s" in page
    assert "&#34;dropout&#34;: 0.2" in page


def test_the_winner_is_named_even_if_it_is_a_baseline() -> None:
    users, lengths = np.arange(300), np.full(300, 5)
    good, bad = ranked(np.zeros(300, int), users, lengths), ranked(np.full(300, 5), users, lengths)
    said = verdict(Question(title="", about="", found={"prism": bad, "item-knn": good}), "ndcg@10").sentence()
    assert said.startswith("Item-kNN (1.000) is ahead of PRISM (0.356): the difference is 0.644 [0.644, 0.644]")
    middle = ranked(np.full(300, 1), users, lengths)
    found = {"prism": bad, "item-knn": good, "popularity": middle}
    assert verdict(Question(title="", about="", found=found), "ndcg@10").sentence().endswith(" PRISM has 0.356.")


def test_a_difference_whose_interval_holds_0_is_no_win() -> None:
    rng = np.random.default_rng(1)
    users, lengths = np.arange(300), np.full(300, 5)
    pair = {name: ranked(rng.integers(0, 40, 300), users, lengths) for name in ("prism", "sasrec")}
    found = verdict(Question(title="", about="", found=pair), "ndcg@10")
    assert not found.clear
    assert "cannot be told apart" in found.sentence()


def test_a_report_that_cannot_be_written_leaves_the_old_one(
    made: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_report(tmp_path / "report.html", made)
    before = path.read_text()

    def stop(*names: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", stop)
        with pytest.raises(KeyboardInterrupt):
            write_report(path, replace(made, command="another"))
    assert path.read_text() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*file/report\.html: "):
        write_report(tmp_path / "file" / "report.html", made)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "report.html"]


def test_the_lead_over_each_baseline_is_told_with_its_interval_and_models_are_no_baselines() -> None:
    users, lengths = np.arange(300), np.full(300, 5)
    good, bad = ranked(np.zeros(300, int), users, lengths), ranked(np.full(300, 5), users, lengths)
    found = {"prism": good, "sasrec": bad, "item-knn": bad, "markov": good}
    said = leads_sentence(Question(title="", about="", found=found), "ndcg@10")
    assert said.endswith("Item-kNN +0.644 [+0.644, +0.644], Markov +0.000 [+0.000, +0.000].")
    assert "SASRec" not in said
