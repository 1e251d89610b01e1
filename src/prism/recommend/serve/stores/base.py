"""What every store does: it keeps events for good, each once, and snapshots of states that may be thrown away.

A store is used by one thread at a time. What a call has written is on the disk when it returns; whatever goes wrong
with the disk or the server is a `StoreError`, and the caller then trusts nothing but what it reads again.
"""

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from prism.errors import InputError


class StoreError(Exception):
    """The store cannot be written or read now."""


class User(NamedTuple):
    """Whose events they are; two tenants' users of one id have nothing in common."""

    tenant: str
    id: str


class Event(NamedTuple):
    """One event as it comes."""

    user: User
    id: str
    item: str
    time: int


class Stored(NamedTuple):
    """What became of an event."""

    seq: int
    """Its number among the user's events, from 1; of a repeated one, the number that it has."""
    new: bool


class Kept(NamedTuple):
    """One event of a user as it is kept."""

    seq: int
    id: str
    item: str
    time: int


class Version(NamedTuple):
    """How far a user's events go: the number and id of the last to arrive; (0, ""): there are none."""

    seq: int
    id: str


NOBODY = Version(0, "")


class Item(NamedTuple):
    """What a tenant says of an item; as a change, None leaves what is kept."""

    id: str
    available: bool | None = None
    """Whether it may be recommended."""
    name: str | None = None
    features: tuple[tuple[str, str], ...] | None = None
    """Columns of the items' table and what stands there."""

    def changed(self, by: "Item") -> "Item":
        """What is kept after a change."""
        told = {name: value for name, value in by._asdict().items() if value is not None}
        return self._replace(**told)

    def features_text(self) -> str | None:
        """For a column of text."""
        return None if self.features is None else json.dumps(dict(self.features))

    @classmethod
    def read(cls, id_: str, available: int | bool, name: str | None, features: str | None) -> "Item":
        found = None if features is None else tuple(json.loads(features).items())
        return cls(id_, bool(available), name, found)


class Snapshot(NamedTuple):
    """A state that holds the user's events up to `version`, none of them later than `time`."""

    version: Version
    time: int
    state: bytes

    def sealed(self) -> tuple[int, str, int, int, bytes]:
        """(number, id, time, checksum, state), as a store keeps it: a damaged one is noticed."""
        return *self.version, self.time, zlib.crc32(self.state), self.state

    @classmethod
    def opened(cls, seq: int, id_: str, time: int, checksum: int, state: object) -> "Snapshot | None":
        """The inverse; None if it is damaged."""
        whole = isinstance(state, bytes) and zlib.crc32(state) == checksum
        return cls(Version(seq, id_), time, state) if whole else None  # type: ignore[arg-type]


class Store(ABC):
    """Events, snapshots of states, and what tenants say of items."""

    exclusive: bool
    """Whether nobody else writes to it while it is open; if not, states in memory may be behind it."""

    @abstractmethod
    def append(self, events: Sequence[Event]) -> list[Stored]:
        """Adds each event after its user's last, all or none; one whose id the tenant has already changes nothing."""

    @abstractmethod
    def events(self, users: Sequence[User], after: Sequence[int]) -> list[list[Kept]]:
        """Each user's events with a number above `after`, in order of time, then of arrival."""

    @abstractmethod
    def versions(self, users: Sequence[User]) -> list[Version]:
        """How far each user's events go."""

    @abstractmethod
    def save(self, model: str, states: Iterable[tuple[User, Snapshot]]) -> None:
        """Snapshots of states under a model, in place of older ones.

        One whose last event is no more among the user's is not kept: the user was forgotten meanwhile.
        """

    @abstractmethod
    def snapshots(self, users: Sequence[User], model: str) -> list[Snapshot | None]:
        """Each user's state under this model, if there is one and it is whole."""

    @abstractmethod
    def forget(self, user: User) -> int:
        """Removes everything of a user; how many events those were."""

    @abstractmethod
    def set_items(self, tenant: str, changes: Sequence[Item]) -> None:
        """Changes what is kept of items, all different; one that is new is available unless it says otherwise."""

    @abstractmethod
    def items(self, tenant: str) -> list[Item]:
        """All that is kept, each with `available` set; in no order."""

    def items_version(self, tenant: str) -> int:
        """Grows whenever a tenant's items are changed; where nobody else writes, nobody needs to ask."""
        return 0

    @abstractmethod
    def count(self) -> int:
        """All events."""

    @abstractmethod
    def reopen(self) -> None:
        """After a failure: connects anew and writes a little, so that it is known whether writes work again."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of it."""


class ServerStore(Store):
    """A store on a server that others may write to too."""

    exclusive = False
    failures: ClassVar[type[Exception]]
    """What its client raises."""

    def __init__(self, address: str):
        self.shown = hidden(address)
        try:
            self.connect(address)
        except (self.failures, ValueError) as error:
            raise InputError(f"store {self.shown} cannot be used: {_line(error)}") from None

    @abstractmethod
    def connect(self, address: str) -> None:
        """Opens it for the first time."""

    def attempt(self, work: Callable[[], Any]) -> Any:
        """What `work` gives; its failure is a `StoreError`."""
        try:
            return work()
        except self.failures as error:
            raise StoreError(f"{self.shown}: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def in_time(events: Iterable[Kept]) -> list[Kept]:
    """In the order in which a model reads them."""
    return sorted(events, key=lambda event: (event.time, event.seq))


def hidden(address: str) -> str:
    """A store's address without the password, for what is printed."""
    scheme, mark, rest = address.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else address
