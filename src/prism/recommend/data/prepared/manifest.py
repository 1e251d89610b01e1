"""A prepared log: `manifest.json`, the items, and one Parquet file per partition of the users.

    manifest.json    format and version, counts, cut-offs in time, and of each file its size and sha256
    items.parquet    item (id), events, trained (events before the first cut-off); ids in increasing order
    lengths.parquet  partition, length, users: how long the training histories are
    part-00007.parquet  user, item (its row in items.parquet), time; by user and time

User u is in partition hash(u) mod P (`partition.py`). Item codes of what is read from here begin with the items that
have training events: the candidates.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from prism.errors import InputError
from prism.recommend.data.log import Codes, Ids, Ints, Log
from prism.recommend.data.splits import Split, queries_of
from prism.recommend.partition import partition

FORMAT, VERSION, MANIFEST, ITEMS, LENGTHS = "prism-log", 1, "manifest.json", "items.parquet", "lengths.parquet"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One partition's file and counts."""

    file: str
    bytes: int
    sha256: str
    users: int
    events: int
    trained: int
    """Events before the first cut-off."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `manifest.json` says."""

    name: str
    parts: tuple[Part, ...]
    items: int
    candidates: int
    """Items with training events."""
    cutoffs: tuple[int, int]
    """Validation and test begin at these times, in seconds since 1970."""
    notes: tuple[str, ...]
    settings: dict[str, Any]
    """What it was made from and how."""
    checksums: dict[str, str]
    """sha256 of the two tables."""

    @property
    def events(self) -> int:
        return sum(part.events for part in self.parts)

    @property
    def users(self) -> int:
        return sum(part.users for part in self.parts)

    @property
    def trained(self) -> int:
        return sum(part.trained for part in self.parts)

    def to_json(self) -> bytes:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1).encode()


def is_prepared(folder: Path) -> bool:
    """Whether `prism prepare` finished in a folder."""
    return (folder / MANIFEST).is_file()


@dataclass(frozen=True)
class Prepared:
    """A prepared log, of which nothing is in memory but the items."""

    folder: Path
    manifest: Manifest
    digest: str
    """Of the manifest: stands for all that is in the folder."""

    @classmethod
    def open(cls, folder: Path) -> "Prepared":
        """Reads the manifest; a missing file, or one of another size, is an error that names it."""
        path = folder / MANIFEST
        try:
            content = path.read_bytes()
            values = json.loads(content)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}): `prism prepare … --out {folder}` makes it") from None
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise InputError(f"{path} is not of a log that `prism prepare` wrote")
        version = values.pop("version", None)
        if version != VERSION:
            raise InputError(
                f"{folder} has version {version!r} of the format, this prism reads {VERSION}: prepare it again"
            )
        try:
            values["parts"] = tuple(Part(**part) for part in values["parts"])
            values |= {name: tuple(values[name]) for name in ("cutoffs", "notes")}
            made = cls(folder, Manifest(**values), sha256(content).hexdigest()[:16])
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged ({error}): prepare it again") from None
        made._check_files()
        return made

    def __len__(self) -> int:
        """P, the number of partitions."""
        return len(self.manifest.parts)

    @cached_property
    def _items(self) -> pl.DataFrame:
        table = pl.read_parquet(io.BytesIO(self._verified(ITEMS, self.manifest.checksums[ITEMS])))
        order = np.argsort(table["trained"].to_numpy() == 0, kind="stable")
        return table[order].with_columns(row=pl.Series(order))

    @cached_property
    def item_ids(self) -> Ids:
        """The id of each code."""
        ids = self._items["item"]
        return ids.to_numpy() if ids.dtype.is_integer() else np.array(ids.to_list(), dtype=object)

    @cached_property
    def item_counts(self) -> Ints:
        """[candidates]: training events of each."""
        return self._items["trained"].to_numpy()[: self.manifest.candidates].copy()  # polars' own cannot be written

    @cached_property
    def _codes(self) -> Codes:
        """The code of each row of the items' table."""
        codes = np.empty(self.manifest.items, dtype=np.int32)
        codes[self._items["row"].to_numpy()] = np.arange(self.manifest.items, dtype=np.int32)
        return codes

    @cached_property
    def lengths(self) -> pl.DataFrame:
        """How many users of each partition have training histories of each length."""
        return pl.read_parquet(io.BytesIO(self._verified(LENGTHS, self.manifest.checksums[LENGTHS])))

    def read(self, number: int) -> Log:
        part = self.manifest.parts[number]
        frame = pl.read_parquet(io.BytesIO(self._verified(part.file, part.sha256)))
        user = frame["user"]
        ids = user.to_numpy() if user.dtype.is_integer() else np.array(user.to_list(), dtype=object)
        first = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])) if len(ids) else np.zeros(0, dtype=np.int64)
        return Log(
            offsets=np.append(first, len(ids)).astype(np.int64),
            items=self._codes[frame["item"].to_numpy()],
            times=frame["time"].to_numpy(),
            user_ids=ids[first],
            item_ids=self.item_ids,
            name=f"{self.manifest.name}/{part.file}",
        )

    def events_of(self, users: Sequence[object]) -> Log:
        """A log of some users alone, read from their partitions; one that is unknown is an error."""
        asked: dict[int, list[object]] = {}
        for user in users:
            asked.setdefault(partition(user, len(self)), []).append(user)
        logs = []
        for number, some in asked.items():
            log = self.read(number)
            codes = log.known_users(some)
            if (codes < 0).any():
                user = some[int(np.argmax(codes < 0))]
                raise InputError(f"user {user!r} is not in {self.folder}; for someone new, give a history of items")
            logs.append(log.recoded(users=np.unique(codes).astype(np.int64), items=np.arange(log.n_items)))
        return joined(logs, self.manifest.name)

    def split(self, numbers: list[int], *, targets: str = "all") -> Split:
        """Some partitions as one divided log, by the cut-offs and candidates of the whole."""
        log = joined([self.read(number) for number in numbers], self.manifest.name)
        first, second = self.manifest.cutoffs
        chosen, candidates = log.where(log.times < first), self.manifest.candidates
        train = replace(chosen, item_ids=self.item_ids[:candidates])
        masks = ((log.times >= first) & (log.times < second), log.times >= second)
        valid, test = (queries_of(log, mask, candidates, False, targets) for mask in masks)  # type: ignore[arg-type]
        return Split(protocol="global-time", log=log, train=train, valid=valid, test=test)

    def _check_files(self) -> None:
        known = {part.file: part.bytes for part in self.manifest.parts}
        for name in (*known, *self.manifest.checksums):
            path = self.folder / name
            if not path.is_file():
                raise InputError(f"{path} is missing: prepare the log again, or bring the file back")
            if name in known and path.stat().st_size != known[name]:
                raise InputError(f"{path} is not what was written, by its size: prepare the log again")

    def _verified(self, name: str, digest: str) -> bytes:
        """A file's content, whose checksum is right."""
        path = self.folder / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}; prepare the log again") from None
        if sha256(content).hexdigest() != digest:
            raise InputError(f"{path} is not what was written, by its checksum: prepare the log again")
        return content


def joined(logs: list[Log], name: str) -> Log:
    """Logs of different users and the same items, one after the other."""
    ends = np.cumsum([0, *(log.n_events for log in logs)])
    return replace(
        logs[0],
        offsets=np.concatenate([[0], *(log.offsets[1:] + end for log, end in zip(logs, ends, strict=False))]),
        items=np.concatenate([log.items for log in logs]),
        times=np.concatenate([log.times for log in logs]),
        user_ids=np.concatenate([log.user_ids for log in logs]),
        name=name,
    )
