"""The second pass: events dealt to one spill file per partition, then each partition sorted by user and time.

A spill file is a row of pieces, each its length in eight bytes and an Arrow stream. How long every spill was after the
last whole chunk is written down: a pass that was stopped cuts them there and goes on.
"""

import io
import json
import warnings
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from prism.errors import Note
from prism.files import write_whole, writing
from prism.recommend.data.clock import read_times
from prism.recommend.data.log import Ints
from prism.recommend.data.prepared.chunks import Source
from prism.recommend.data.prepared.manifest import Part
from prism.recommend.data.prepared.survey import Survey
from prism.recommend.partition import partition

DEALT = "dealt.json"


class Dealer:
    """Spill files in a folder, one per partition."""

    def __init__(self, work: Path, parts: int, found: Survey, *, number_users: bool):
        self.work, self.parts, self.number_users = work, parts, number_users
        self.items = found.items.with_row_index("code").with_columns(pl.col("code").cast(pl.Int32))

    def deal(self, sources: Sequence[Source], *, drop_nulls: bool, time_format: str | None, say: Any) -> None:
        """All events of all files, from where an earlier call stopped."""
        first, skip = self._resume()
        for number in range(first, len(sources)):
            source, before = sources[number], skip if number == first else 0
            for chunk, done in source.chunks(before, drop_nulls=drop_nulls):
                if chunk.height:
                    self._append(self._coded(chunk, source, time_format))
                self._mark(number, done)
                say(f"{source.name}: {done:,} events dealt")
            self._mark(number + 1, 0)

    def spill(self, number: int) -> Path:
        return self.work / f"spill-{number:05d}"

    def _coded(self, chunk: pl.DataFrame, source: Source, time_format: str | None) -> pl.DataFrame:
        """user, item (its row in the table), time, order, part."""
        place = f"time column {source.columns['time']!r} of {source.name}"
        seconds, order, _ = read_times(chunk["time"], place, time_format)
        user = chunk["user"].cast(pl.Int64) if self.number_users else chunk["user"]
        ids = user.unique()
        parts = np.array([partition(one, self.parts) for one in ids.to_list()], dtype=np.int32)
        item = chunk["item"].cast(self.items["item"].dtype)
        frame = pl.DataFrame({"user": user, "item": item, "time": seconds, "order": order})
        frame = frame.join(pl.DataFrame({"user": ids, "part": parts}), on="user", maintain_order="left")
        frame = frame.join(self.items, on="item", maintain_order="left")
        assert frame.height == chunk.height
        return frame.select("user", pl.col("code").alias("item"), "time", "order", "part")

    def _append(self, frame: pl.DataFrame) -> None:
        frame = frame.sort("part", maintain_order=True)
        part = frame["part"].to_numpy()
        starts = np.flatnonzero(np.append(True, part[1:] != part[:-1]))
        frame = frame.drop("part")
        for a, b in zip(starts, [*starts[1:], len(part)], strict=True):
            piece = io.BytesIO()
            frame[int(a) : int(b)].write_ipc_stream(piece)
            path = self.spill(int(part[a]))
            with writing(path), path.open("ab") as file:
                file.write(len(piece.getvalue()).to_bytes(8, "little") + piece.getvalue())

    def read(self, number: int) -> pl.DataFrame | None:
        """A partition's events in the order in which they were dealt; None: it has none."""
        path = self.spill(number)
        if not path.exists():
            return None
        content, at, pieces = path.read_bytes(), 0, []
        while at < len(content):
            size = int.from_bytes(content[at : at + 8], "little")
            pieces.append(pl.read_ipc_stream(io.BytesIO(content[at + 8 : at + 8 + size])))
            at += 8 + size
        return pl.concat(pieces)

    def _mark(self, source: int, rows: int) -> None:
        sizes = {path.name: path.stat().st_size for path in self.work.glob("spill-*")}
        write_whole(self.work / DEALT, json.dumps({"source": source, "rows": rows, "sizes": sizes}).encode())

    def _resume(self) -> tuple[int, int]:
        """(file, rows of it that are dealt); spills longer than they were then are cut, shorter ones mean: again."""
        path = self.work / DEALT
        mark: dict[str, Any] = {"source": 0, "rows": 0, "sizes": {}}
        if path.exists():
            mark = json.loads(path.read_text(encoding="utf-8"))
        sizes = mark["sizes"]
        short = [
            name
            for name, size in sizes.items()
            if not (file := self.work / name).exists() or file.stat().st_size < size
        ]
        if short:
            warnings.warn(
                Note(f"{self.work / short[0]} is shorter than it was: all events are dealt again"), stacklevel=2
            )
            mark, sizes = {"source": 0, "rows": 0}, {}
        for file in self.work.glob("spill-*"):
            if file.name not in sizes:
                file.unlink()
            elif file.stat().st_size > sizes[file.name]:
                with file.open("r+b") as stream:
                    stream.truncate(sizes[file.name])
        return int(mark["source"]), int(mark["rows"])


class Sorter:
    """Partitions in their final form, one after the other, and what they add up to."""

    def __init__(self, out: Path, work: Path, items: int, first_cutoff: int):
        self.out, self.cutoff, self.listed = out, first_cutoff, work / "parts.jsonl"
        self.events, self.trained = np.zeros(items, dtype=np.int64), np.zeros(items, dtype=np.int64)
        self.known = _known(self.listed)
        self.parts: list[Part] = []
        self.lengths: list[pl.DataFrame] = []

    def add(self, number: int, dealer: Dealer, empty: pl.DataFrame) -> None:
        """Sorts and writes one partition, or counts what an earlier call wrote."""
        path = self.out / f"part-{number:05d}.parquet"
        content = self._found(number, path)
        if content is None:
            dealt = dealer.read(number)
            frame = empty if dealt is None else dealt.sort("user", "order", maintain_order=True).drop("order")
            buffer = io.BytesIO()
            frame.write_parquet(buffer)
            content = buffer.getvalue()
            write_whole(path, content)
        else:
            frame = pl.read_parquet(io.BytesIO(content))
        self._count(number, frame)
        early = int((frame["time"] < self.cutoff).sum())
        part = Part(
            file=path.name,
            bytes=len(content),
            sha256=sha256(content).hexdigest(),
            users=frame["user"].n_unique(),
            events=frame.height,
            trained=early,
        )
        self.parts.append(part)
        if number >= len(self.known):
            with writing(self.listed), self.listed.open("a", encoding="utf-8") as file:
                file.write(json.dumps(vars(part)) + "\n")

    def _found(self, number: int, path: Path) -> bytes | None:
        """What an earlier call wrote, if it is that."""
        if number >= len(self.known) or not path.exists():
            return None
        content = path.read_bytes()
        return content if sha256(content).hexdigest() == self.known[number].sha256 else None

    def _count(self, number: int, frame: pl.DataFrame) -> None:
        train = frame.filter(pl.col("time") < self.cutoff)
        size = len(self.events)
        self.events += np.bincount(frame["item"].to_numpy(), minlength=size)
        self.trained += np.bincount(train["item"].to_numpy(), minlength=size)
        each = train.group_by("user").len("length").group_by("length").len("users").sort("length")
        self.lengths.append(each.select(pl.lit(number, pl.Int32).alias("partition"), pl.all().cast(pl.Int64)))

    def items(self, ids: pl.DataFrame) -> pl.DataFrame:
        counted: dict[str, Ints] = {"events": self.events, "trained": self.trained}
        return ids.with_columns(**{name: pl.Series(values) for name, values in counted.items()})


def _known(listed: Path) -> list[Part]:
    """The partitions that a file lists; from the first broken line on, which a stop left, they are cut off."""
    found: list[Part] = []
    lines = listed.read_bytes().splitlines(keepends=True) if listed.exists() else []
    for line in lines:
        try:
            part = Part(**json.loads(line))
        except (ValueError, TypeError):
            break
        if not line.endswith(b"\n"):
            break
        found.append(part)
    if len(found) < len(lines):
        write_whole(listed, b"".join(lines[: len(found)]))
    return found
