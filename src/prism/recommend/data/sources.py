"""Where events come from: files (CSV, TSV, JSON, Parquet; packed or not) or data frames, scanned lazily."""

import bz2
import glob
import gzip
import re
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from prism.errors import InputError

TABLES = (".csv", ".tsv", ".tab", ".txt", ".inter", ".parquet", ".pq", ".jsonl", ".ndjson", ".json")
NULLS = ["NaN", "nan", "NULL", "null"]
PACKED = (".gz", ".zst", ".bz2", ".zip")
GZIP, ZSTD, BZIP2, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"PK\x03\x04"
# What the columns of a file without a header are, by how many there are.
UNNAMED = {2: ["user", "item"], 3: ["user", "item", "time"], 4: ["user", "item", "rating", "time"]}


class Table(NamedTuple):
    """One file, to be read."""

    frame: pl.LazyFrame
    typed: bool
    """Whether the format has types; else every column is text, so that '007' stays '007'."""


def files_of(source: str | Path | Iterable[str | Path]) -> list[Path]:
    """The files that a path, folder, pattern or list names; folders and patterns in order of name."""
    if not isinstance(source, str | Path):
        found = [file for one in source for file in files_of(one)]
        if not found:
            raise InputError("source is an empty list: give at least one file")
        return found
    if source == "":
        raise InputError("source is empty: name a file, a folder or a pattern")  # Path("") is the folder we are in
    path = Path(source).expanduser()
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if _is_table(file))
        if not found:
            raise InputError(f"folder {path} holds no data file: expected {', '.join(TABLES)}")
        return found
    if path.exists():
        return [path]
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
    if not found:
        kind = "no file matches" if glob.has_magic(str(path)) else "no such file:"
        raise InputError(f"{kind} {path}; give a CSV, TSV, Parquet or JSON-lines file, or a folder of them")
    return [file for one in found for file in files_of(one)]


def scan(file: Path) -> Table:
    source, head = _opened(file)
    suffix = _suffix(file)
    try:
        table = _table(source, head, suffix, file)
        table.frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {file}: {_line(error)}") from None
    return table


def _table(source: Path | bytes, head: bytes, suffix: str, file: Path) -> Table:
    if head.startswith(b"PAR1"):
        return Table(pl.scan_parquet(source), typed=True)
    if suffix in (".parquet", ".pq") or b"\0" in head:
        expected = "Parquet" if suffix in (".parquet", ".pq") else "CSV, TSV, Parquet or JSON lines"
        raise InputError(f"{file} is not a {expected} file (it begins with {head[:4]!r}): convert it first")
    if head.lstrip().startswith(b"{"):
        return Table(pl.scan_ndjson(source, infer_schema_length=10_000), typed=True)
    if head.lstrip().startswith(b"["):
        return Table(pl.read_json(_unpacked(source), infer_schema_length=None).lazy(), typed=True)
    options: dict[str, Any] = {"infer_schema": False, "null_values": NULLS}
    first = head.partition(b"\n")[0].rstrip(b"\r")
    if first.count(b"::") in (2, 3) and first.replace(b"::", b"").count(b":") == 0:
        return Table(_double_colons(source, first, options), typed=False)
    separator = "\t" if suffix in (".tsv", ".tab", ".inter") else _separator(first)
    if not _is_event(first.decode("utf-8", "replace").split(separator)):
        return Table(pl.scan_csv(source, separator=separator, **options), typed=False)
    frame = pl.scan_csv(source, separator=separator, has_header=False, **options)
    numbers = {name: str(n + 1) for n, name in enumerate(frame.collect_schema().names())}
    return Table(frame.rename(numbers), typed=False)


def _is_event(cells: list[str]) -> bool:
    """Whether a file's first line is an event and no header: only names that count columns are numbers."""
    numbers = [cell.strip().strip('"') for cell in cells]
    counted = any(numbers == [str(first + n) for n in range(len(cells))] for first in (0, 1))
    return not counted and any(re.match(r"\d+(\.\d*)?$|\d{4}[-/]\d\d[-/]\d\d", number) for number in numbers)


def without_header(names: Sequence[str]) -> bool:
    """Whether these are the names that columns without one are given: 1, 2, 3, …"""
    return list(names) == [str(n + 1) for n in range(len(names))]


def _double_colons(source: Path | bytes, first: bytes, options: dict[str, Any]) -> pl.LazyFrame:
    """user::item::rating::time, with or without a header: read with one colon, every other column is empty."""
    fields = first.decode("utf-8", "replace").split("::")
    named = not fields[-1].strip().isdecimal()
    frame = pl.scan_csv(source, separator=":", has_header=False, skip_rows=int(named), quote_char=None, **options)
    names = fields if named else UNNAMED[len(fields)]
    return frame.select(pl.nth(2 * n).alias(name) for n, name in enumerate(names))


def collect(frame: pl.LazyFrame, where: str) -> pl.DataFrame:
    """Reads; what polars cannot read becomes one line that names the source."""
    try:
        with pl.Config() as config:
            # the streaming engine does not keep the order of rows through joins, and ties in time need it; before
            # polars 2 a user's own choice of that engine would go before the one named here
            config.set_engine_affinity("in-memory")
            return frame.collect(engine="in-memory")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"cannot read {where}: {_line(error)}") from None


def from_pandas(frame: Any, columns: Sequence[str]) -> pl.DataFrame:
    """The named columns of a pandas frame; a column of mixed types becomes text."""
    return pl.DataFrame([_series(frame[name], name) for name in columns])


def _series(column: Any, name: str) -> pl.Series:
    """By way of numpy, which needs no pyarrow."""
    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    if getattr(column.dtype, "kind", "O") in "iufM" and not column.hasnans:
        values = column.to_numpy()
        # polars before 2 knows no whole seconds
        return pl.Series(name, values.astype("M8[ms]") if values.dtype == "M8[s]" else values)
    missing, values = column.isna().to_numpy(), column.to_numpy(dtype=object, copy=True)
    values[missing] = None
    try:
        return pl.Series(name, values.tolist())
    except (TypeError, pl.exceptions.PolarsError):  # Python objects of several types in one column
        return pl.Series(name, [None if gone else str(value) for value, gone in zip(values, missing, strict=True)])


def _opened(file: Path) -> tuple[Path | bytes, bytes]:
    """What polars is given (it unpacks gzip and zstd itself), and the first bytes, unpacked."""
    source: Path | bytes = file
    if file.suffix.lower() in (".xlsx", ".xls"):
        raise InputError(f"{file} is an Excel workbook: save its sheet as CSV")
    try:
        with file.open("rb") as stream:
            head = stream.read(4096)
        if head.startswith(GZIP):
            with gzip.open(file) as unpacked:
                head = unpacked.read(4096)
        elif head.startswith(ZSTD):
            head = _unpacked(file, lines=20)
        elif head.startswith((BZIP2, ZIP)):
            source = _unpacked(file)
            head = source[:4096]
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, pl.exceptions.PolarsError) as error:
        why = getattr(error, "strerror", None) or _line(error)
        raise InputError(f"cannot read {file}: {why}; check the path and its permissions") from None
    if not head.strip():
        raise InputError(f"{file} is empty: it needs a header line and events")
    return source, head


def _unpacked(source: Path | bytes, *, lines: int | None = None) -> bytes:
    """All bytes, or of a zstd file the first `lines`."""
    if isinstance(source, bytes):
        return source
    packed = source.read_bytes()
    if packed.startswith(GZIP):
        return gzip.decompress(packed)
    if packed.startswith(BZIP2):
        with bz2.open(source) as stream:
            return stream.read()
    if packed.startswith(ZIP):
        with zipfile.ZipFile(source) as archive:
            names = [name for name in archive.namelist() if Path(name).suffix.lower() in (*TABLES, ".dat")]
            if len(names) != 1:
                raise InputError(f"{source} holds {len(names)} tables: unpack it, and give the one with the events")
            return archive.read(names[0])
    if packed.startswith(ZSTD):  # through polars: Python's library has it from 3.14 on
        frame = pl.read_csv(
            source, has_header=False, separator="\x1f", quote_char=None, infer_schema=False, n_rows=lines
        )
        return "\n".join(frame.to_series().fill_null("")).encode()
    return packed


def _is_table(file: Path) -> bool:
    return file.is_file() and not file.name.startswith((".", "_")) and _suffix(file) in TABLES


def _suffix(file: Path) -> str:
    return Path(file.stem if file.suffix.lower() in PACKED else file.name).suffix.lower()


def _separator(line: bytes) -> str:
    """The mark that a line has most of; spaces only where there is no other."""
    mark = max(",\t;|", key=lambda mark: line.count(mark.encode()))
    return mark if mark.encode() in line else " "


def _line(error: Exception) -> str:
    """Its first line, with the remedy where it is known."""
    why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "more fields than defined" in why:
        return "a line has more fields than the header; put values that contain the separator in quotes"
    return f"{why}: save the file as UTF-8" if "utf-8" in why.lower() else why
