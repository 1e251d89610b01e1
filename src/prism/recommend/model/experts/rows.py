"""Sparse tables of the experts: what comes with one item, and what comes after two in turn."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from prism.ops.cpu.compiling import loop
from prism.recommend.data.log import Codes, Ints


class Rows(NamedTuple):
    """A sparse table whose row j is a distribution, or less than one, in order of column (`together`, pairs: of share).

    Its entries are starts[j] … starts[j + 1] − 1; of a row with more than `rows_kept` the largest are here.
    """

    starts: Ints
    columns: NDArray[np.int32]
    shares: NDArray[np.float32]
    totals: NDArray[np.float32]
    """[rows]: the weight that the row was made of; 0: the row is empty."""
    tops: NDArray[np.float32]
    """[rows]: the largest share of each row."""

    def without_entries(self) -> "Rows":
        """As many rows, all of them empty."""
        starts, totals, tops = np.zeros_like(self.starts), np.zeros_like(self.totals), np.zeros_like(self.tops)
        return Rows(starts, self.columns[:0], self.shares[:0], totals, tops)


class Pairs(NamedTuple):
    """A row for each two items of which one came directly after the other, often enough.

    The pairs that end in item j are starts[j] … starts[j + 1] − 1, in order of the item that they begin with.
    """

    starts: Ints
    first: NDArray[np.int32]
    """[pairs]: the item that each begins with."""
    rows: Rows

    def without_entries(self) -> "Pairs":
        """No pair ends in any item."""
        return pairs_from(
            *(np.zeros(0, dtype=np.int32) for _ in range(3)), last=(0, len(self.starts) - 1), least=1, kept=1
        )


# What is taken from every count of an item after a pair, as in absolute discounting: much of what came once came by
# chance. Pairs that came less often than this have no row.
DISCOUNT, FEWEST = 0.75, 2
# Of a log with more events than this, what came once after a pair has no entry; with more than twice as many, nor has
# what came twice, and so on.
PAIR_EVENTS = 1 << 23


def turn_order(first: Codes, second: Codes, third: Codes) -> Ints:
    """The order in which `pairs_from` takes every three items in turn: by the second, the first, the third."""
    return np.lexsort((third, first, second))


def pairs_from(first: Codes, second: Codes, third: Codes, *, last: tuple[int, int], least: int, kept: int) -> Pairs:
    """From every three items in turn, in their order, where the second is one of last[0] … last[1] − 1.

    An item that came fewer than `least` times after a pair has no entry; of the others those of the `kept` largest
    shares have one.
    """
    of_pair = _changes(first, second)
    of_entry = _changes(first, second, third)
    totals = np.diff(np.append(of_pair, len(first)))
    counts = np.diff(np.append(of_entry, len(first)))
    pair = np.searchsorted(of_pair, of_entry, side="right") - 1
    here = np.flatnonzero((totals[pair] >= FEWEST) & (counts >= least))
    here = here[np.lexsort((-counts[here], pair[here]))]  # of each pair the most frequent first
    here = here[np.arange(len(here)) - np.searchsorted(pair[here], pair[here]) < kept]
    found, row = np.unique(pair[here], return_inverse=True)
    shares = ((counts[here] - DISCOUNT) / totals[found][row]).astype(np.float32)
    starts = np.searchsorted(row, np.arange(len(found) + 1))
    rows = Rows(starts, third[of_entry[here]], shares, totals[found].astype(np.float32), shares[starts[:-1]])
    return Pairs(np.searchsorted(second[of_pair[found]], np.arange(last[0], last[1] + 1)), first[of_pair[found]], rows)


def _changes(*columns: Codes) -> Ints:
    """Where any column differs from the row before; the first row does."""
    differs = [column[1:] != column[:-1] for column in columns]
    return np.flatnonzero(np.concatenate([np.ones(len(columns[0]), dtype=np.bool_)[:1], np.any(differs, axis=0)]))


Table = TypeVar("Table")


def named_arrays(table: Any, prefix: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Every array of a table and of the tables in it, named as `next.starts` or `pair.rows.shares`."""
    for name, part in table._asdict().items():
        if isinstance(part, tuple):
            yield from named_arrays(part, f"{prefix}{name}.")
        else:
            yield prefix + name, part


def table_from(kind: Callable[..., Table], arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> Table:
    """The inverse of `named_arrays`, for a table of this kind."""
    parts = {
        name: table_from(hint, arrays, f"{prefix}{name}.")
        if isinstance(hint, type) and issubclass(hint, tuple)
        else arrays[prefix + name]
        for name, hint in get_type_hints(kind).items()
    }
    return kind(**parts)


@loop
def pair_of(pairs, latest, before):  # type: ignore[no-untyped-def]
    """The row of an item and the one directly before it (-1: there was none); -1 if there is no such row."""
    low, high = pairs.starts[latest], pairs.starts[latest + 1]
    end = high
    while low < high:
        middle = (low + high) // 2
        if pairs.first[middle] < before:
            low = middle + 1
        else:
            high = middle
    return low if low < end and pairs.first[low] == before else -1
