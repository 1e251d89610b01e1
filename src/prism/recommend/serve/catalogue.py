"""One tenant's items under one model: those that the model knows, and those that the tenant told of.

What is told of a known item (a name, features, whether it may be recommended) replaces what the model's folder says;
what the model has learned of it stays. An unknown item is placed by its features, and has a code after the known ones';
one that is like no known item, or of which no features are told, waits for a model that knows it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from prism.errors import InputError, suggest
from prism.recommend.answer.because import Reason, reasons
from prism.recommend.answer.choose import Filter, best, chosen, masked
from prism.recommend.answer.similar import similarities
from prism.recommend.data.items import items_with, with_items
from prism.recommend.data.log import Log, without_events
from prism.recommend.data.splits import Queries
from prism.recommend.live.placed import Place, Places
from prism.recommend.recommender import Recommender
from prism.recommend.serve.labels import Labels
from prism.recommend.serve.stores.base import Item, Kept

# Items whose places are remembered.
MOST_PLACES = 200_000
# Events of a history that reasons are looked for in.
MOST_REASONS = 200


class Shelf:
    """What is the same for all tenants of a model: what it knows of its items, and where unknown ones belong."""

    def __init__(self, recommender: Recommender):
        self.model, self.places = recommender, Places(recommender)
        self.labels = Labels(recommender)
        self._found: dict[Item, Place | None] = {}

    def checked(self, features: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        """As they are kept; a column that the model's table of items does not have, or another type, is refused."""
        columns = self.places.columns
        if features and not columns:
            raise InputError(
                "the model was trained without a table of items (--items): it takes names and availability, no features"
            )
        for column in features:
            if column not in columns:
                raise InputError(f"the model's items have no column {column!r}: {suggest(column, columns)}")
        return tuple(sorted((column, _cell(column, columns[column], value)) for column, value in features.items()))

    def place(self, item: Item) -> Place | None:
        """Where an unknown item belongs; worked out once, in any thread."""
        told = Item("", None, item.name, item.features)  # of these alone it depends
        if told in (known := self._found):
            return known[told]
        if len(known) >= MOST_PLACES:
            self._found = {}  # another thread may be reading the old one
        place = self._found[told] = self.places.place({"name": item.name, **dict(item.features or ())})
        return place

    def prepare(self, items: Iterable[Item]) -> None:
        """Works out `place` for those that the model does not know."""
        for item in items:
            if self.model.log.item_codes([item.id])[0] < 0:
                self.place(item)


class Catalogue:
    """Of one tenant; it never changes: another takes its place."""

    def __init__(self, shelf: Shelf, told: Mapping[str, Item]):
        self.shelf, self.told, self.model = shelf, told, shelf.model
        self.items = shelf.model.model.items
        codes = self.model.log.item_codes(list(told)).tolist()
        self._codes = {id_: code for id_, code in zip(told, codes, strict=True) if 0 <= code < self.items}
        unknown = {id_: shelf.place(told[id_]) for id_ in told if id_ not in self._codes}
        places = {id_: place for id_, place in unknown.items() if place is not None}
        self.placed = shelf.places.placed(list(places.values()))
        self.new = {id_: self.items + n for n, id_ in enumerate(places)}
        """The codes of placed items."""
        self._codes |= self.new
        self.mask = torch.ones(self.items + len(self.new), dtype=torch.bool)
        """[items and placed ones]: what may be recommended."""
        self.mask[[code for id_, code in self._codes.items() if not told[id_].available]] = False
        names = {code: name for id_, code in self._codes.items() if (name := told[id_].name) is not None}
        self.labels = Labels(self.model, names, list(places)) if names or places else shelf.labels

    def code(self, item: str) -> int:
        """Of a known item, or of a placed one."""
        found = self._codes.get(item)
        return self.model.log.item_code(item) if found is None else found

    def name(self, item: str) -> str | None:
        """What to show for an item, the model's or not."""
        told = self.told.get(item)
        if told is not None and told.name is not None:
            return told.name
        log, code = self.model.log, int(self.model.log.item_codes([item])[0])
        return None if code < 0 or log.item_names is None else log.item_names[code]

    def facts(self, item: str) -> dict[str, Any]:
        """What an item is now, told of or not."""
        told = self.told.get(item)
        found = self._codes.get(item)
        code = int(self.model.log.item_codes([item])[0]) if found is None else found
        return {
            "item": item,
            "available": told is None or bool(told.available),
            "known": 0 <= code < self.items,
            "recommended": code >= 0 and bool(self.mask[code]),
        }

    def all_items(self) -> Iterator[tuple[Any, str | None]]:
        """(id, name) of all items: the model's, those placed, and those that wait for another model."""
        for code in range(len(self.mask)):
            yield self.labels.item(code)
        for id_, told in self.told.items():
            if id_ not in self._codes:
                yield id_, told.name

    def similar(self, item: str, k: int) -> list[tuple[Any, str | None, float]]:
        """(id, name, score) of the k items nearest to one, nearest first."""
        code, mask = self.code(item), self.mask.clone()
        mask[code] = False
        scores, codes = best(similarities(self.model, code, self.placed), mask, None, k)
        pairs = zip(scores[0].tolist(), codes[0].tolist(), strict=True)
        return [(*self.labels.item(code), score) for score, code in pairs if score > -inf]

    def because(self, item: str, events: Sequence[Kept], k: int) -> list[Reason]:
        """The k events that an item's score leans on most, of the latest that the model knows."""
        code = self.code(item)
        codes = self.model.log.item_codes([one.item for one in events]).tolist()
        known = [one for one, of in zip(events, codes, strict=True) if 0 <= of < self.items][-MOST_REASONS:]
        history, times = [one.item for one in known], [one.time for one in known]
        log = self.model.history(None, history, times)
        found = reasons(self._scorer, log, self.items, code, last=MOST_REASONS, k=k)
        return [reason._replace(name=self.name(str(reason.item))) for reason in found]

    def _scorer(self, log: Log, queries: Queries) -> Any:
        if self.placed is None:
            return self.model.scorer(log, queries)
        whole = self.placed.scores(self.model.scorer, log, queries)
        return whole if self.model.experts is None else whole.log_softmax(1)

    def permits(self, allow: Filter | None, deny: Filter | None) -> Tensor:
        """[items and placed ones]: whether the two filters let an item through."""
        return masked(len(self.mask), self._chosen, allow, deny)

    def _chosen(self, wanted: Filter) -> Tensor:
        found = torch.zeros(len(self.mask), dtype=torch.bool)
        found[: self.items] = chosen(self.model.log, self.items, wanted)
        if isinstance(wanted, Mapping):
            codes, table = self._table
            if codes:
                found[codes] = torch.from_numpy(items_with(table, wanted))
        else:
            found[[self.new[id_] for id_ in map(str, wanted) if id_ in self.new]] = True
        return found

    @cached_property
    def _table(self) -> tuple[list[int], Log]:
        """The rows of the items' table that the tenant has changed or added, all as text, and their codes."""
        mine = [id_ for id_ in self._codes if self.told[id_].features is not None or self.told[id_].name is not None]
        codes, log = [self._codes[id_] for id_ in mine], self.model.log
        known = [code for code in codes if code < self.items]
        table = log.item_features
        rows: dict[str, list[Any]] = {"name": [self.name(id_) for id_ in mine]}
        for column in self.shelf.places.columns if table is not None else ():
            assert table is not None
            before = dict(zip(known, table[column][known].to_list(), strict=True))
            told = (dict(self.told[id_].features or ()).get(column) for id_ in mine)
            pairs = zip(told, map(before.get, codes), strict=True)
            rows[column] = [_text(old if new is None else new) for new, old in pairs]
        return codes, with_items(without_events(np.array(mine, dtype=object), log.name), mine, **rows)


def _text(cell: Any) -> str | None:
    return None if cell is None else str(cell)


def _cell(column: str, kind: Any, value: Any) -> str:
    """A cell as the table would have it, as text."""
    if isinstance(value, list):
        value = "|".join(map(str, value))
    if kind == pl.Boolean:
        if isinstance(value, bool):
            return str(value)
        raise InputError(f"column {column!r} of the model's items is true or false, got {value!r}")
    if not kind.is_numeric():
        return str(value)
    try:
        return str(int(str(value)) if kind.is_integer() else float(value))
    except (ValueError, OverflowError):
        raise InputError(f"column {column!r} of the model's items has numbers, got {str(value)[:100]!r}") from None
