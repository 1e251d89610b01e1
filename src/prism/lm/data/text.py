"""Documents from text files, folders, JSON lines and Parquet, or from Python's own documentation and library."""

import gzip
import json
import re
import sysconfig
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from prism.errors import InputError, Note, needs, suggest

PLAIN = {".txt", ".text", ".md", ".rst", ".py", ".tex", ".html"}
LINES = {".jsonl", ".ndjson", ".json"}
TABLES = {".parquet", ".pq"}
# Between documents of a plain file.
FORM_FEED = "\f"
# Half of a pair by which JSON writes an emoji: "\\ud83d" alone, where a text was cut, is in no Unicode text.
SURROGATE = re.compile("[\ud800-\udfff]")


def read_documents(paths: Sequence[Path], *, column: str = "text") -> Iterator[str]:
    """Every document of files and folders, in the order of their names; empty ones are left out.

    Args:
        paths: Text files (documents apart by form feeds), JSON lines, Parquet (each also as .gz, Parquet apart), or
            folders of such files.
        column: The field of JSON lines and Parquet that holds the text.
    """
    found = False
    for file in text_files(paths):
        for document in _reader(file)(file, column):
            if document.strip():
                found = True
                yield document
    if not found:
        raise InputError(f"{', '.join(map(str, paths))} has no text: every document is empty")


def text_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, folders opened."""
    if not paths:
        raise InputError("no text given: name files or folders")
    files = []
    for path in paths:
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*")) if p.is_file() and _kind(p) in PLAIN | LINES | TABLES]
            if not inside:
                kinds = ", ".join(sorted(PLAIN | LINES | TABLES))
                raise InputError(f"{path} holds no text files: expected some of {kinds}")
            files.extend(inside)
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"{path} does not exist: name a text file or a folder of them")
    return files


def python_documents() -> Iterator[str]:
    """The topics of Python's help and the sources of its standard library: text that every machine has."""
    from pydoc_data.topics import topics

    yield from (topics[name] for name in sorted(topics))
    library = Path(sysconfig.get_paths()["stdlib"])
    apart = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "pydoc_data", "turtledemo"}
    for file in sorted(library.rglob("*.py")):
        if not apart & set(file.relative_to(library).parts):
            text = file.read_text(encoding="utf-8", errors="ignore")
            if text.strip():
                yield text


def _kind(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    return Path(name).suffix.lower()


def _reader(path: Path) -> Callable[[Path, str], Iterator[str]]:
    kind = _kind(path)
    return _table if kind in TABLES else _lines if kind in LINES else _plain


def _text(path: Path) -> str:
    """The file's text; what is not UTF-8 text is refused."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a whole gzip file: {error}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}): convert it, or name another file") from None
    if "\0" in text:
        raise InputError(f"{path} is a binary file (a zero byte at {text.index(chr(0))}): name a text file")
    return text


def _plain(path: Path, column: str) -> Iterator[str]:
    yield from _text(path).split(FORM_FEED)


def _lines(path: Path, column: str) -> Iterator[str]:
    for number, row in json_lines(path):
        if not isinstance(row.get(column), str):
            known = [name for name, value in row.items() if isinstance(value, str)]
            hint = suggest(column, known) if known else "none of its fields holds text"
            raise InputError(f"{path} line {number} has no text under {column!r}: {hint}")
        text = SURROGATE.sub("\N{REPLACEMENT CHARACTER}", row[column])
        if text != row[column]:
            _say_replaced(path)
        yield text


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines with the numbers of their lines; empty lines are left out."""
    # not splitlines(): U+2028 and U+0085 may stand inside a JSON string
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path} line {number} is not JSON: {error.msg}; one object per line is expected"
            ) from None
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists thousands deep
            raise InputError(f"{path} line {number} is JSON that cannot be read: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"{path} line {number} is not a JSON object: one object per line is expected")
        yield number, row


@cache
def _say_replaced(path: Path) -> None:
    """Once for each file, however often it is read."""
    message = f"{path} has halves of surrogate pairs, which no text can hold: each is read as U+FFFD"
    warnings.warn(Note(message), stacklevel=2)


def _table(path: Path, column: str) -> Iterator[str]:
    needs("polars", extra="recommend")
    import polars as pl

    try:
        names = pl.read_parquet_schema(path)
        if column not in names:
            raise InputError(f"{path} has no column {column!r}: {suggest(column, names)}")
        yield from pl.read_parquet(path, columns=[column])[column].drop_nulls().cast(pl.String).to_list()
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
