"""An interaction log as a value: who took what, when; one row per user, each row in order of time."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from prism.errors import InputError

if TYPE_CHECKING:
    import polars as pl

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Ids = NDArray[Any]
# A whole number as Python writes it.
NUMBER = re.compile("0|-?[1-9][0-9]{0,19}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Log:
    """Events of user u: `items[offsets[u]:offsets[u + 1]]`, oldest first, ties in time in file order.

    Codes count from 0; `user_ids[code]` and `item_ids[code]` are the ids the source used.
    """

    offsets: Ints
    """[users + 1]: where each user's events begin and end."""
    items: Codes
    """[events]: item codes."""
    times: Ints
    """[events]: seconds since 1970 (order within a second is kept from the source's finer clock)."""
    user_ids: Ids
    item_ids: Ids
    item_names: NDArray[Any] | None = None
    """[items]: text to show, or None."""
    item_features: "pl.DataFrame | None" = None
    """One row per item, in the order of codes, or None."""
    name: str = "log"
    notes: tuple[str, ...] = ()
    """What the reader decided by itself, e.g. the unit of time: print it."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """What the source calls user, item and time, and the name of an item: later events are likely to do so too."""

    @property
    def n_users(self) -> int:
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @property
    def n_events(self) -> int:
        return len(self.items)

    @property
    def lengths(self) -> Ints:
        """[users]: events of each user."""
        return np.diff(self.offsets)

    @property
    def users(self) -> Ints:
        """[events]: the user code of every event."""
        return np.repeat(np.arange(self.n_users), self.lengths)

    def history(self, user: int) -> Codes:
        """Item codes of one user, oldest first."""
        return self.items[self.offsets[user] : self.offsets[user + 1]]

    def item_counts(self) -> Ints:
        """[items]: events of each item."""
        return np.bincount(self.items, minlength=self.n_items)

    def item_label(self, code: int) -> str:
        """The item's name, or its id."""
        name = None if self.item_names is None else self.item_names[code]
        return str(self.item_ids[code] if name is None else name)

    @cached_property
    def _user_codes(self) -> dict[Any, int]:
        return {id_: code for code, id_ in enumerate(self.user_ids.tolist())}

    @cached_property
    def _item_codes(self) -> dict[Any, int]:
        return {id_: code for code, id_ in enumerate(self.item_ids.tolist())}

    def user_code(self, user: object) -> int:
        """The code of a user's id, or of one that is written the same, as a command line gives it."""
        code = _lookup(self._user_codes, user)
        if code is None:
            raise InputError(f"user {user!r} is not in {self.name}: its ids look like {_some(self.user_ids)}")
        return code

    def item_code(self, item: object) -> int:
        """The code of an item's id, or of one that is written the same."""
        code = _lookup(self._item_codes, item)
        if code is None:
            raise InputError(f"item {item!r} is not in {self.name}: its ids look like {_some(self.item_ids)}")
        return code

    def item_codes(self, items: Iterable[object]) -> Codes:
        """Codes of many ids; -1 where an item is unknown."""
        found = (_lookup(self._item_codes, item) for item in items)
        return np.array([-1 if code is None else code for code in found], dtype=np.int32)

    def known_users(self, users: Iterable[object]) -> Codes:
        """Codes of many users' ids; -1 where a user is unknown."""
        found = (_lookup(self._user_codes, user) for user in users)
        return np.array([-1 if code is None else code for code in found], dtype=np.int32)

    def where(self, events: NDArray[np.bool_]) -> "Log":
        """The chosen events only; users and items keep their codes, so that some may have no event left."""
        kept = np.concatenate([[0], np.cumsum(events)])
        return replace(self, offsets=kept[self.offsets], items=self.items[events], times=self.times[events])

    def recoded(self, *, users: Ints, items: Ints) -> "Log":
        """Users and items in a new order, given as old codes; what is not listed goes, events included."""
        code = np.full(self.n_items, -1, dtype=np.int32)
        code[items] = np.arange(len(items), dtype=np.int32)
        new = code[self.items]
        rest = self.where(new >= 0)
        take = concatenated_ranges(rest.offsets[users], rest.lengths[users])
        return replace(
            self,
            offsets=np.concatenate([[0], np.cumsum(rest.lengths[users])]),
            items=new[new >= 0][take],
            times=rest.times[take],
            user_ids=self.user_ids[users],
            item_ids=self.item_ids[items],
            item_names=None if self.item_names is None else self.item_names[items],
            item_features=None if self.item_features is None else self.item_features[items.tolist()],
        )

    def with_min_user_events(self, least: int) -> "Log":
        """Users with at least `least` events, and the items that they took."""
        users = np.flatnonzero(self.lengths >= least)
        if not len(users):
            raise InputError(
                f"no user of {self.name} has {least} events, the most is {self.lengths.max(initial=0)}: "
                "ask for fewer with min_user_events"
            )
        seen = self.where((self.lengths >= least)[self.users]).item_counts()
        return self.recoded(users=users, items=np.flatnonzero(seen))

    def frame(self) -> "pl.DataFrame":
        """Columns user, item, time (seconds), one row per event, by user and time."""
        import polars as pl

        users, items = id_column(self.user_ids[self.users]), id_column(self.item_ids[self.items])
        return pl.DataFrame({"user": users, "item": items, "time": self.times})


def id_column(ids: Ids) -> "pl.Series":
    """Ids as a column of a table, which has one type: numbers beside text are text there."""
    import polars as pl

    if ids.dtype != object:
        return pl.Series(ids)
    values = ids.tolist()
    return pl.Series(list(map(str, values)) if numbers_among(ids).any() else values)


def numbers_among(ids: Ids) -> NDArray[np.bool_]:
    """[ids]: which of them are numbers, where others are text."""
    if ids.dtype != object:
        return np.zeros(len(ids), dtype=bool)
    return np.array([isinstance(id_, int) for id_ in ids.tolist()], dtype=bool)


def concatenated_ranges(starts: Ints, lengths: Ints) -> Ints:
    """starts[0], starts[0] + 1, … lengths[0] of them, then starts[1], …"""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    steps: Ints = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
    return steps


def _lookup(codes: dict[Any, int], id_: object) -> int | None:
    """The code of an id, or of one that is written the same: '7' for 7, but not '007'."""
    if isinstance(id_, np.generic):
        id_ = id_.item()
    if isinstance(id_, bool) or not isinstance(id_, str | int | float):
        return None
    if id_ in codes:
        return codes[id_]
    if isinstance(id_, str):
        return codes.get(int(id_)) if NUMBER.fullmatch(id_) else None
    return codes.get(str(id_))


def _some(ids: Ids) -> str:
    return ", ".join(map(repr, ids[:3].tolist())) + (", …" if len(ids) > 3 else "")


def without_events(item_ids: Ids, name: str = "log") -> Log:
    """A log of these items, without users and events."""
    none = np.zeros(0, dtype=np.int64)
    offsets, no_ids = np.zeros(1, dtype=np.int64), none.astype(object)
    return Log(offsets=offsets, items=none.astype(np.int32), times=none, user_ids=no_ids, item_ids=item_ids, name=name)
