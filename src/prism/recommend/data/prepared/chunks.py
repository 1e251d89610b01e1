"""Any number of event files, local or in an object store, read a chunk of rows at a time under one set of types."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import polars as pl
import polars.selectors as cs

from prism.errors import InputError
from prism.recommend.data.logs import NO_TIME, are_numbers, by_role, choose_columns, whole_numbers
from prism.recommend.data.sources import NULLS, Table, files_of, scan

# Rows of a chunk.
ROWS = 1_000_000
ROLES = ("user", "item", "time")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file, or what one pattern in an object store names: columns user, item and time, in the types of all."""

    name: str
    frame: pl.LazyFrame
    columns: dict[str, str]
    numbers: dict[str, bool]
    """Of user and item, whether all files have numbers; else ids are text."""

    def chunks(self, skip: int, *, drop_nulls: bool) -> Iterator[tuple[pl.DataFrame, int]]:
        """(events, rows read so far) chunk by chunk, in the order of the file, after the first `skip` rows."""
        done = skip
        try:
            for chunk in self.frame.slice(skip).collect_batches(chunk_size=ROWS, maintain_order=True):
                done += chunk.height
                yield self._clean(chunk, done - chunk.height, drop_nulls), done
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InputError(f"cannot read {self.name}: {str(error).splitlines()[0]}") from None

    def _clean(self, chunk: pl.DataFrame, first: int, drop_nulls: bool) -> pl.DataFrame:
        """Ids in the type of all files, floats as whole numbers; an event without an id is dropped, or refused."""
        for role in ROLES[:2]:
            if chunk[role].dtype.is_float():
                place = f"{role} column {self.columns[role]!r} of {self.name}"
                chunk = chunk.with_columns(whole_numbers(chunk[role], place).alias(role))
        chunk = chunk.with_columns(
            pl.col(role).cast(pl.Int64 if number else pl.String) for role, number in self.numbers.items()
        )
        if drop_nulls:
            return chunk.with_columns(cs.float().fill_nan(None)).drop_nulls()
        for role in ROLES[:2]:
            if chunk[role].null_count():
                row = first + int(chunk[role].is_null().arg_max() or 0) + 1
                raise InputError(
                    f"{role} column {self.columns[role]!r} of {self.name}: the id is missing in event {row}; "
                    "drop such rows with drop_nulls="
                )
        return chunk


def open_sources(logs: Sequence[str], wanted: dict[str, str | None]) -> tuple[list[Source], bool]:
    """The files that paths, folders, patterns and addresses (s3://…) name, and whether their formats have types."""
    found: list[tuple[str, Table]] = []
    for log in logs:
        if "://" in log:
            found.append((log, _scan_address(log)))
        else:
            found += [(str(file), scan(file)) for file in files_of(log)]
    columns = [choose_columns(wanted, table.frame.collect_schema().names(), name) for name, table in found]
    if any("time" not in own for own in columns):
        raise InputError(
            f"time={NO_TIME!r}: a prepared log is divided by time; name the column of times, or give the log to "
            "`prism fit` as it is"
        )
    frames = [table.frame.select(**by_role(own)) for (_, table), own in zip(found, columns, strict=True)]
    schemas = [frame.collect_schema() for frame in frames]
    numbers = {role: are_numbers(schema[role] for schema in schemas) for role in ROLES[:2]}
    times = {schema["time"] for schema in schemas}
    if len(times) > 1:  # files may disagree on a type: then text serves all
        kind = pl.Int64 if all(kind.is_integer() for kind in times) else pl.String
        frames = [frame.with_columns(pl.col("time").cast(kind)) for frame in frames]
    sources = [
        Source(name=name, frame=frame, columns=own, numbers=numbers)
        for (name, _), frame, own in zip(found, frames, columns, strict=True)
    ]
    return sources, any(table.typed for _, table in found)


def _scan_address(address: str) -> Table:
    """What polars' own readers take: s3://, gs://, az://, https:// or file://, patterns included."""
    suffixes = PurePosixPath(address.partition("://")[2].lower()).suffixes
    kind = next((s for s in reversed(suffixes) if s not in (".gz", ".zst")), "")
    try:
        if kind in (".parquet", ".pq"):
            table = Table(pl.scan_parquet(address), typed=True)
        elif kind in (".jsonl", ".ndjson"):
            table = Table(pl.scan_ndjson(address, infer_schema_length=10_000), typed=True)
        elif kind in (".csv", ".tsv"):
            separator = "\t" if kind == ".tsv" else ","
            options = {"separator": separator, "infer_schema": False, "null_values": NULLS}
            table = Table(pl.scan_csv(address, **options), typed=False)  # type: ignore[arg-type]
        else:
            raise InputError(f"{address}: its format shows in no suffix; give .parquet, .csv, .tsv or .jsonl")
        table.frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"cannot read {address}: {str(error).splitlines()[0]}") from None
    return table
