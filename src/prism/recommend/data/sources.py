"""Where events come from: files (CSV, TSV, JSON lines, Parquet) or data frames, scanned lazily."""

import glob
import gzip
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from prism.errors import InputError

TABLES = (".csv", ".tsv", ".tab", ".txt", ".inter", ".parquet", ".pq", ".jsonl", ".ndjson", ".json")
NULLS = ["NaN", "nan", "NULL", "null"]


def files_of(source: str | Path | Iterable[str | Path]) -> list[Path]:
    """The files that a path, folder, pattern or list names; folders and patterns in order of name."""
    if not isinstance(source, str | Path):
        found = [file for one in source for file in files_of(one)]
        if not found:
            raise InputError("source is an empty list: give at least one file")
        return found
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


def scan(file: Path) -> pl.LazyFrame:
    """One file, lazily. Text formats yield text in every column, so that '007' stays '007'."""
    head = _head(file)
    suffix = _suffix(file)
    if head.startswith(b"PAR1"):
        return _checked(pl.scan_parquet(file), file)
    if suffix in (".parquet", ".pq") or b"\0" in head:
        expected = "Parquet" if suffix in (".parquet", ".pq") else "CSV, TSV, Parquet or JSON lines"
        raise InputError(f"{file} is not a {expected} file (it begins with {head[:4]!r}): convert it first")
    if head.lstrip().startswith(b"{"):
        return _checked(pl.scan_ndjson(file, infer_schema_length=10_000), file)
    separator = "\t" if suffix in (".tsv", ".tab", ".inter") else _separator(head)
    return _checked(pl.scan_csv(file, separator=separator, infer_schema=False, null_values=NULLS), file)


def collect(frame: pl.LazyFrame, where: str) -> pl.DataFrame:
    """Reads; what polars cannot read becomes one line that names the source."""
    try:
        return frame.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"cannot read {where}: {_line(error)}") from None


def from_pandas(frame: Any, columns: Sequence[str]) -> pl.DataFrame:
    """The named columns of a pandas frame; a column of mixed types becomes text."""
    return pl.DataFrame([_series(frame[name], name) for name in columns])


def _series(column: Any, name: str) -> pl.Series:
    try:
        series = pl.Series(name, pl.from_pandas(column))
        if series.dtype != pl.Object:
            return series
    except (ImportError, TypeError, ValueError, pl.exceptions.PolarsError):
        pass  # no pyarrow, or Python objects of several types in one column
    known = column.notna().to_list()
    values = [str(value) if ok else None for value, ok in zip(column.to_list(), known, strict=True)]
    return pl.Series(name, values, dtype=pl.String)


def _checked(frame: pl.LazyFrame, file: Path) -> pl.LazyFrame:
    try:
        frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"cannot read {file}: {_line(error)}") from None
    return frame


def _head(file: Path) -> bytes:
    """The first bytes, unpacked if gzip packed them."""
    try:
        with file.open("rb") as stream:
            head = stream.read(4096)
        if head.startswith(b"\x1f\x8b"):
            with gzip.open(file) as unpacked:
                head = unpacked.read(4096)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {file}: {why}; check the path and its permissions") from None
    if not head.strip():
        raise InputError(f"{file} is empty: it needs a header line and events")
    return head


def _is_table(file: Path) -> bool:
    return file.is_file() and not file.name.startswith((".", "_")) and _suffix(file) in TABLES


def _suffix(file: Path) -> str:
    return Path(file.stem if file.suffix.lower() == ".gz" else file.name).suffix.lower()


def _separator(head: bytes) -> str:
    line = head.splitlines()[0]
    return max(",\t;|", key=lambda mark: line.count(mark.encode()))


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
