"""What tenants told of items, as the store has it: one catalogue of each that has asked, made anew when it changes."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from prism.errors import InputError
from prism.recommend.serve.catalogue import Catalogue, Shelf
from prism.recommend.serve.stores.base import Item, Store

# Items of which a tenant may tell.
MOST_ITEMS = 100_000
# Seconds for which another machine's change of items may go unseen.
ITEM_SECONDS = 1.0


class _Kept(NamedTuple):
    """A tenant's catalogue, as of a version of the store's items; to be compared with it again at a time."""

    catalogue: Catalogue
    version: int
    until: float


def changed(told: Mapping[str, Item], by: Item) -> Item:
    """What is kept of an item after a change; one that is new is available."""
    return told.get(by.id, Item(by.id, True)).changed(by)


class Catalogues:
    """Under one model at a time; to be used by the engine's thread, but for what says otherwise."""

    def __init__(self, store: Store):
        self.store = store
        self._kept: dict[str, _Kept] = {}

    def of(self, tenant: str, shelf: Shelf) -> Catalogue:
        """A tenant's items now."""
        kept = self._kept.get(tenant)
        if kept is not None and (self.store.exclusive or time.monotonic() < kept.until):
            return kept.catalogue
        version = self.store.items_version(tenant)
        if kept is not None and kept.version == version:
            return self._keep(tenant, kept.catalogue, version)
        told = {item.id: item for item in self.store.items(tenant)}
        return self._keep(tenant, Catalogue(shelf, told), version)

    def _keep(self, tenant: str, catalogue: Catalogue, version: int) -> Catalogue:
        self._kept[tenant] = _Kept(catalogue, version, time.monotonic() + ITEM_SECONDS)
        return catalogue

    def change(self, tenant: str, shelf: Shelf, changes: Sequence[Item], ready: "Ready | None" = None) -> Catalogue:
        """Keeps what a tenant tells of items, all different; `ready` is what `prepare` made of them."""
        before = self.of(tenant, shelf)
        made = ready.made if ready is not None and ready.before is before else _after(before, shelf, changes)
        self.store.set_items(tenant, changes)
        # a version of the past: where others write too, what they changed meanwhile is read next time
        return self._keep(tenant, made, self._kept[tenant].version)

    def clear(self) -> None:
        """The store is to be asked again."""
        self._kept.clear()

    def prepare(self, before: Catalogue, changes: Sequence[Item]) -> "Ready":
        """The catalogue after a tenant's changes, so that the engine need not make it; in any other thread."""
        return Ready(before, _after(before, before.shelf, changes))

    def place(self, shelf: Shelf) -> None:
        """Works out where all tenants' items belong under another model; in any other thread."""
        for one in list(self._kept.values()):
            shelf.prepare(one.catalogue.told.values())


class Ready(NamedTuple):
    """What a catalogue becomes by changes, as long as it is the tenant's."""

    before: Catalogue
    made: Catalogue


def _after(before: Catalogue, shelf: Shelf, changes: Sequence[Item]) -> Catalogue:
    told = dict(before.told)
    for one in changes:
        told[one.id] = changed(told, one)
    if len(told) > MOST_ITEMS:
        raise InputError(f"a tenant may tell of {MOST_ITEMS:,} items, and these would be {len(told):,}")
    return Catalogue(shelf, told)
