"""Logs by the name of a known data set or from any source, and their statistics beside the paper's."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prism.errors import InputError, suggest
from prism.recommend.data import readers, reviews, synthetic
from prism.recommend.data.catalogue import KNOWN, Known, Reader, Statistics
from prism.recommend.data.items import with_item_table
from prism.recommend.data.log import Log
from prism.recommend.data.logs import read_log
from prism.recommend.data.places import Place, locate
from prism.recommend.data.reading import READING, Reading

READERS: dict[Reader, Callable[[Place, str], Log]] = {
    "movielens": readers.movielens,
    "amazon": reviews.amazon,
    "yelp": reviews.yelp,
}

SHIPPED: dict[str, Callable[[], Log]] = {
    "online-retail": readers.online_retail,
    "synthetic-repeats": synthetic.repeat_log,
    "synthetic-markov": synthetic.markov_log,
    "synthetic-kinds": synthetic.kinds_log,
    "synthetic-baskets": synthetic.basket_log,
    "synthetic-walk": synthetic.walk_log,
}


def load(
    source: Any,
    reading: Reading = READING,
    *,
    min_user_events: int | None = None,
    later: bool = False,
    usual: Mapping[str, str] | None = None,
) -> Log:
    """A known data set by its name (from `reading.folder`, $PRISM_DATA or ~/.cache/prism), or any log as `read_log`.

    The paper's sets keep users with at least 40 events, as it does; `min_user_events` says otherwise. `later` and
    `usual` as in `read_log`.
    """
    known = KNOWN.get(source) if isinstance(source, str) else None
    if known is not None:
        log = _read_known(source, known, reading.folder)
    elif isinstance(source, str | Path) and _is_atomic(Path(source).expanduser()):
        place = Place(Path(source).expanduser())
        log = readers.recbole(place, Path(source).stem, reading, later=later, usual=usual)
    else:
        if isinstance(source, str) and _is_bare_name(source):
            raise InputError(f"{source!r} is neither a file nor a known data set: {suggest(source, KNOWN)}")
        log = read_log(
            source, user=reading.user, item=reading.item, time=reading.time, drop_nulls=reading.drop_nulls,
            time_format=reading.time_format, later=later, usual=usual,
        )  # fmt: skip
    if reading.items is not None:
        log = with_item_table(log, reading.items, item=reading.item, name=reading.item_name)
    elif reading.item_name is not None:
        raise InputError(f"item_name={reading.item_name!r} is a column of a table of items: give items= too")
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
    if known.reader is None or known.home is None:
        return SHIPPED[name]()
    place = locate(name, known.home, folder)
    return readers.recbole(place, name) if place.names("*.inter") else READERS[known.reader](place, name)


def _is_atomic(path: Path) -> bool:
    return path.suffix == ".inter" if path.is_file() else path.is_dir() and any(path.glob("*.inter"))


def _is_bare_name(source: str) -> bool:
    """A word that names nothing on disk and could not be a file or a pattern: a misspelt data set."""
    return not any(mark in source for mark in "./\\*?[") and not Path(source).exists()
