"""Data sets by name, where to get them, and the paper's statistics of its four."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.data import readers, reviews
from prism.data.log import Log
from prism.data.logs import read_log
from prism.data.places import Place, locate
from prism.errors import InputError, suggest

GROUPLENS = "https://grouplens.org/datasets/movielens/"
AMAZON = "https://jmcauley.ucsd.edu/data/amazon/ (2014; 2018 and 2023 are read too)"


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """One row of the paper's table of data sets."""

    users: int
    items: int
    events: int

    @property
    def average_length(self) -> float:
        return self.events / self.users


@dataclass(frozen=True, kw_only=True)
class Known:
    """A data set that has a name."""

    about: str
    home: str | None = None
    """Where to download it; None: it ships with prism."""
    read: Callable[[Place, str], Log] | None = None
    min_user_events: int = 1
    """The paper's filter, where it has one."""
    paper: Statistics | None = None


def _paper(about: str, home: str, read: Callable[[Place, str], Log], *counts: int) -> Known:
    users, items, events = counts
    paper = Statistics(users=users, items=items, events=events)
    return Known(about=about, home=home, read=read, min_user_events=40, paper=paper)


KNOWN: dict[str, Known] = {
    "online-retail": Known(about="purchases of an online shop, 2010-2011; ships with prism"),
    "ml-100k": Known(about="100,000 film ratings", home=GROUPLENS + "100k/", read=readers.movielens),
    "ml-1m": Known(about="1 million film ratings", home=GROUPLENS + "1m/", read=readers.movielens),
    "ml-10m": Known(about="10 million film ratings", home=GROUPLENS + "10m/", read=readers.movielens),
    "ml-20m": Known(about="20 million film ratings", home=GROUPLENS + "20m/", read=readers.movielens),
    "ml-25m": Known(about="25 million film ratings", home=GROUPLENS + "25m/", read=readers.movielens),
    "amazon-books": _paper("the paper's Amazon_Books", AMAZON, reviews.amazon, 31_103, 339_960, 3_319_359),
    "amazon-movies": _paper("the paper's Amazon_Movies", AMAZON, reviews.amazon, 9_429, 58_636, 1_142_976),
    "amazon-electronics": _paper("the paper's Amazon_Elecs", AMAZON, reviews.amazon, 1_869, 33_135, 123_147),
    "yelp": _paper("the paper's Yelp", "https://www.yelp.com/dataset", reviews.yelp, 17_233, 126_829, 1_605_608),
}


def load(
    source: Any,
    *,
    folder: str | Path | None = None,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    min_user_events: int | None = None,
) -> Log:
    """A known data set by its name (from `folder`, $PRISM_DATA or ~/.cache/prism), or any log as `read_log`.

    The paper's sets keep users with at least 40 events, as it does; `min_user_events` says otherwise.
    """
    known = KNOWN.get(source) if isinstance(source, str) else None
    if known is not None:
        log = _read_known(source, known, folder)
    elif isinstance(source, str | Path) and _is_atomic(Path(source).expanduser()):
        log = readers.recbole(Place(Path(source).expanduser()), Path(source).stem)
    else:
        if isinstance(source, str) and _is_bare_name(source):
            raise InputError(f"{source!r} is neither a file nor a known data set: {suggest(source, KNOWN)}")
        log = read_log(source, user=user, item=item, time=time)
    least = min_user_events or (known.min_user_events if known else 1)
    return log.with_min_user_events(least) if least > 1 else log


def statistics(log: Log) -> Statistics:
    """Users with events, items with events, events."""
    return Statistics(users=int((log.lengths > 0).sum()), items=int((log.item_counts() > 0).sum()), events=log.n_events)


def statistics_table(log: Log) -> str:
    """The log's statistics, with the paper's below where it prints any."""
    known = KNOWN.get(log.name)
    rows = [("ours", statistics(log))] + ([("paper", known.paper)] if known and known.paper else [])
    lines = [f"{log.name:<20}{'users':>12}{'items':>12}{'events':>14}{'avg length':>12}"]
    for label, row in rows:
        lines.append(f"{label:<20}{row.users:>12,}{row.items:>12,}{row.events:>14,}{row.average_length:>12.2f}")
    return "\n".join(lines)


def _read_known(name: str, known: Known, folder: str | Path | None) -> Log:
    if known.read is None or known.home is None:
        return readers.online_retail()
    place = locate(name, known.home, folder)
    return readers.recbole(place, name) if place.names("*.inter") else known.read(place, name)


def _is_atomic(path: Path) -> bool:
    return path.suffix == ".inter" if path.is_file() else path.is_dir() and any(path.glob("*.inter"))


def _is_bare_name(source: str) -> bool:
    """A word that names nothing on disk and could not be a file or a pattern: a misspelt data set."""
    return not any(mark in source for mark in "./\\*?[") and not Path(source).exists()
