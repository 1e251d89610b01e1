"""Data sets by name: what each is, where to get it, who reads it, and the paper's statistics of its four."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from prism.printed import DATASETS

Reader = Literal["movielens", "amazon", "yelp"]
GROUPLENS = "https://grouplens.org/datasets/movielens/"
AMAZON = "https://jmcauley.ucsd.edu/data/amazon/ (2014; 2018 and 2023 are read too)"


class Statistics(NamedTuple):
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
    reader: Reader | None = None
    min_user_events: int = 1
    """The paper's filter, where it has one."""
    paper: Statistics | None = None


def _paper(name: str, about: str, home: str, reader: Reader) -> Known:
    users, items, events = DATASETS[name]
    paper = Statistics(users=users, items=items, events=events)
    return Known(about=about, home=home, reader=reader, min_user_events=40, paper=paper)


KNOWN: dict[str, Known] = {
    "online-retail": Known(about="purchases of an online shop, 2010-2011; ships with prism"),
    "synthetic-repeats": Known(about="made up: people at their own places again and again; no download"),
    "synthetic-markov": Known(about="made up: the next item depends on the latest; no download"),
    "synthetic-kinds": Known(about="made up: the kind of the next item depends on that of the latest; no download"),
    "synthetic-baskets": Known(about="made up: baskets of one subject each; no download"),
    "synthetic-walk": Known(about="made up: walks among 33,000 items, few events of each; no download"),
    "ml-100k": Known(about="100,000 film ratings", home=GROUPLENS + "100k/", reader="movielens"),
    "ml-1m": Known(about="1 million film ratings", home=GROUPLENS + "1m/", reader="movielens"),
    "ml-10m": Known(about="10 million film ratings", home=GROUPLENS + "10m/", reader="movielens"),
    "ml-20m": Known(about="20 million film ratings", home=GROUPLENS + "20m/", reader="movielens"),
    "ml-25m": Known(about="25 million film ratings", home=GROUPLENS + "25m/", reader="movielens"),
    "amazon-books": _paper("amazon-books", "the paper's Amazon_Books", AMAZON, "amazon"),
    "amazon-movies": _paper("amazon-movies", "the paper's Amazon_Movies", AMAZON, "amazon"),
    "amazon-electronics": _paper("amazon-electronics", "the paper's Amazon_Elecs", AMAZON, "amazon"),
    "yelp": _paper("yelp", "the paper's Yelp", "https://www.yelp.com/dataset", "yelp"),
}
