"""What a comparison of recommenders found: metrics on two questions, curves, performance by length, customers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from prism.recommend.data.log import Log
from prism.recommend.data.splits import Queries
from prism.recommend.evaluation.baselines import BASELINES
from prism.recommend.evaluation.intervals import Estimate, estimates
from prism.recommend.evaluation.metrics import metric_values
from prism.recommend.evaluation.ranking import Evaluation
from prism.recommend.recommender import Recommender

LABELS = {
    "prism": "PRISM",
    "gated-deltanet": "Gated DeltaNet",
    "sasrec": "SASRec",
    "prism-alone": "PRISM alone",
    "gated-deltanet-alone": "Gated DeltaNet alone",
    "sasrec-alone": "SASRec alone",
    "popularity": "Popularity",
    "repeat-last": "Repeat last",
    "item-knn": "Item-kNN",
    "markov": "Markov",
    "session-knn": "Session-kNN",
    "ease": "EASE",
}
# Shortest histories of each group, in events.
LENGTHS = (1, 20, 50, 100, 200, 500)
RECENT, SHOWN = 8, 10


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """One kind of query, asked to all systems: the same queries, the same candidates."""

    title: str
    about: str
    """Which events are asked about, in a sentence."""
    found: Mapping[str, Evaluation]
    """By name, trained models first."""


class Verdict(NamedTuple):
    """Which system has the highest mean, and by how much over the best other one on the same queries."""

    metric: str
    best: str
    second: str
    values: Mapping[str, float]
    difference: Estimate

    @property
    def clear(self) -> bool:
        """Whether the interval of the difference leaves out 0."""
        return self.difference.low > 0

    def sentence(self, ours: str = "prism") -> str:
        """The result as one would say it, whoever wins."""
        best, second = (f"{LABELS.get(n, n)} ({self.values[n]:.3f})" for n in (self.best, self.second))
        gap = f"the difference is {self.difference.mean:.3f} [{self.difference.low:.3f}, {self.difference.high:.3f}]"
        if self.clear:
            sentence = f"{best} is ahead of {second}: {gap}."
        else:
            sentence = f"{best} and {second} cannot be told apart: {gap}."
        if ours in self.values and ours not in (self.best, self.second):
            sentence += f" {LABELS.get(ours, ours)} has {self.values[ours]:.3f}."
        return sentence


def verdict(question: Question, metric: str) -> Verdict:
    """The two best systems, compared query by query."""
    values = {name: evaluation[metric] for name, evaluation in question.found.items()}
    best, second = sorted(values, key=lambda name: -values[name])[:2]
    gap = difference(question, best, second, metric)
    return Verdict(metric=metric, best=best, second=second, values=values, difference=gap)


def difference(question: Question, one: str, two: str, metric: str) -> Estimate:
    """How much higher one system is than another, query by query, with the interval over users."""
    first, second = question.found[one], question.found[two]
    return estimates({metric: first.values[metric] - second.values[metric]}, first.users)["event"][metric]


def leads(question: Question, metric: str, ours: str = "prism") -> dict[str, Estimate]:
    """How far one system is ahead of each simple baseline (behind: below 0)."""
    return {name: difference(question, ours, name, metric) for name in question.found if name in BASELINES}


def leads_sentence(question: Question, metric: str, ours: str = "prism") -> str:
    """The same in words."""
    differences = [
        f"{LABELS.get(name, name)} {one.mean:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"
        for name, one in leads(question, metric, ours).items()
    ]
    return f"{LABELS.get(ours, ours)} less each simple baseline, customer by customer: {', '.join(differences)}."


def hit_curve(evaluation: Evaluation, longest: int) -> list[tuple[int, float]]:
    """(K, Hit@K) for K from 1 to `longest`, evenly on a logarithmic scale."""
    cutoffs = np.unique(np.geomspace(1, longest, 25).round().astype(int)).tolist()
    values = metric_values(evaluation.ranks, cutoffs)
    return [(k, float(values[f"hit@{k}"].mean())) for k in cutoffs]


def length_groups(evaluation: Evaluation, least: int = 20) -> list[tuple[str, np.ndarray]]:
    """(name, queries) by the events before the target; groups of fewer than `least` queries are left out."""
    lengths, groups = evaluation.history_lengths, []
    for low, high in zip(LENGTHS, [*LENGTHS[1:], None], strict=True):
        inside = lengths >= low if high is None else (lengths >= low) & (lengths < high)
        if inside.sum() >= least:
            groups.append((f"{low}+" if high is None else f"{low}–{high - 1}", inside))
    return groups


def group_estimate(evaluation: Evaluation, inside: np.ndarray, metric: str) -> Estimate:
    """The mean over some of the queries, with its interval."""
    found = estimates({metric: evaluation.values[metric][inside]}, evaluation.users[inside], samples=300)
    return found["event"][metric]


class Suggestion(NamedTuple):
    """A recommended item, and what is known about it afterwards."""

    name: str
    bought_later: bool
    bought_before: bool


@dataclass(frozen=True, kw_only=True)
class Customer:
    """Someone at the moment of coming back: what was bought until then, what is recommended."""

    user: Any
    events: int
    returned: str
    """The day of the first purchase after the cut-off."""
    recent: Sequence[tuple[str, str]]
    """(day, name), the latest first."""
    suggestions: Sequence[Suggestion]
    later: int
    """Different items bought from then on."""


def customers(recommender: Recommender, returns: Queries, *, count: int = 3, least: int = 10) -> list[Customer]:
    """Customers at even quantiles of history length, so that nobody picks those that look good.

    `returns` has one query per user: the first event after the cut-off.
    """
    log = recommender.log
    lengths = returns.positions - log.offsets[returns.users]
    long = np.flatnonzero(lengths >= min(least, lengths.max()))
    order = long[np.argsort(lengths[long], kind="stable")]
    places = np.linspace(0, len(order), count + 2)[1:-1].astype(int)
    return [_customer(recommender, log, returns, int(order[place])) for place in np.unique(places)]


def _customer(recommender: Recommender, log: Log, returns: Queries, n: int) -> Customer:
    user, position = int(returns.users[n]), int(returns.positions[n])
    past, future = slice(log.offsets[user], position), log.items[position : log.offsets[user + 1]]
    # the candidates are the model's; what it has never seen it would only skip with a warning
    known = log.items[past] < recommender.model.items
    found = recommender.recommend(
        history=log.item_ids[log.items[past][known]],
        times=log.times[past][known],
        at=int(log.times[position]),
        k=SHOWN,
    )
    codes = log.item_codes([one.item for one in found]).tolist()
    before, later = set(log.items[past].tolist()), set(future.tolist())
    events = range(position - 1, max(position - 1 - RECENT, log.offsets[user] - 1), -1)
    return Customer(
        user=log.user_ids[user],
        events=position - int(log.offsets[user]),
        returned=_day(int(log.times[position])),
        recent=[(_day(int(log.times[e])), _name(log, int(log.items[e]))) for e in events],
        suggestions=[
            Suggestion(name=_name(log, code), bought_later=code in later, bought_before=code in before)
            for code in codes
        ],
        later=len(later),
    )


def _name(log: Log, code: int) -> str:
    return " ".join(log.item_label(code).split())


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
