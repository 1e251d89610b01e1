"""Readers of published layouts: MovieLens, RecBole atomic files, Online Retail."""

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from prism.errors import InputError
from prism.recommend.data.items import with_items
from prism.recommend.data.log import Log
from prism.recommend.data.logs import build_log, by_role, choose_columns, read_log
from prism.recommend.data.places import Place
from prism.recommend.data.reading import COLUMNS, Columns

SHIPPED = Path(__file__).with_name("online_retail")
NAMES = {"user": "user", "item": "item", "time": "timestamp"}


def online_retail() -> Log:
    """The log that ships with prism: purchases of an online shop in 2010-2011 (CC BY 4.0, see NOTICE)."""
    log = replace(read_log(SHIPPED / "events.parquet"), name="online-retail")
    items = pl.read_parquet(SHIPPED / "items.parquet")
    return with_items(log, items["item"].to_list(), name=items["description"].to_list())


def movielens(place: Place, name: str) -> Log:
    """GroupLens' folders and zips: ratings.dat (1M, 10M), ratings.csv (20M and later) or u.data (100K)."""
    found = place.names("ratings.dat", "ratings.csv", "u.data")
    if not found:
        raise InputError(f"{place.path} holds no ratings.dat, ratings.csv or u.data: is it the {name} folder?")
    where, file = f"{found[0]} of {place.path}", found[0]
    content = place.read(file)
    try:
        if file.endswith(".dat"):  # a::b::c::d, which a one-character separator reads with empty columns between
            frame = pl.read_csv(content, separator=":", has_header=False, infer_schema=False)[:, [0, 2, 6]]
        elif file.endswith(".csv"):
            frame = pl.read_csv(content, infer_schema=False)[:, [0, 1, 3]]
        else:
            frame = pl.read_csv(content, separator="\t", has_header=False, infer_schema=False)[:, [0, 1, 3]]
    except (pl.exceptions.PolarsError, IndexError) as error:
        raise InputError(f"{where} is not a MovieLens ratings file: {str(error).splitlines()[0]}") from None
    frame.columns = list(NAMES)
    return _with_films(build_log(frame, NAMES, where, name=name), place)


def _with_films(log: Log, place: Place) -> Log:
    found = place.names("movies.dat", "movies.csv", "u.item")
    if not found:
        return log
    content = place.read(found[0])
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode("latin-1")
        log = replace(log, notes=(*log.notes, f"{found[0]} is not UTF-8: read as latin-1"))
    if found[0].endswith(".csv"):
        rows = list(csv.reader(io.StringIO(text)))[1:]
    else:
        mark = "::" if found[0].endswith(".dat") else "|"
        rows = [line.split(mark) for line in text.replace("\r", "").split("\n") if line]
    ids, names = [row[0] for row in rows], [row[1] for row in rows]
    if found[0].endswith("u.item"):  # its genres are nineteen flags
        return with_items(log, ids, name=list(names))
    return with_items(log, ids, name=list(names), genres=[row[2] for row in rows])


def recbole(
    place: Place,
    name: str,
    reading: Columns = COLUMNS,
    *,
    later: bool = False,
    usual: Mapping[str, str] | None = None,
) -> Log:
    """RecBole's atomic files: `.inter` with `field:type` headers, and names from `.item` if there is one."""
    found = place.names("*.inter")
    if not found:
        raise InputError(f"{place.path} holds no .inter file: is it a folder of RecBole atomic files?")
    frame = _atomic(place, found[0])
    wanted = {"user": reading.user, "item": reading.item, "time": reading.time}
    columns = choose_columns(wanted, frame.columns, f"{found[0]} of {place.path}", usual)
    log = build_log(
        frame.select(**by_role(columns)),
        columns,
        str(place.path),
        name=name,
        later=later,
        drop_nulls=reading.drop_nulls,
        time_format=reading.time_format,
    )
    tables = place.names("*.item")
    if not tables and place.path.is_file():
        place, tables = Place(place.path.parent), [place.path.with_suffix(".item").name]
        if not (place.path / tables[0]).exists():
            return log
    return _with_atomic_items(log, _atomic(place, tables[0])) if tables else log


def _atomic(place: Place, file: str) -> pl.DataFrame:
    try:
        return pl.read_csv(place.read(file), separator="\t", infer_schema=False, quote_char=None)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{file} of {place.path} is no atomic file: {str(error).splitlines()[0]}") from None


def _with_atomic_items(log: Log, table: pl.DataFrame) -> Log:
    plain = {column: column.partition(":")[0] for column in table.columns}
    table = table.rename(plain)
    title = next((c for c in table.columns if any(word in c for word in ("title", "name"))), None)
    columns = {("name" if c == title else c): table[c].to_list() for c in table.columns[1:]}
    return with_items(log, table[table.columns[0]].to_list(), **columns)
