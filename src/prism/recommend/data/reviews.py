"""Readers of review collections: Amazon (2014, 2018, 2023; JSON lines or ratings CSV) and Yelp's JSON lines."""

import ast
import json
from collections.abc import Iterator
from io import BufferedIOBase
from typing import Any

import polars as pl

from prism.errors import InputError
from prism.recommend.data.items import with_items
from prism.recommend.data.log import Log
from prism.recommend.data.logs import build_log
from prism.recommend.data.places import Place

BLOCK = 64 * 2**20
FIELDS = {
    "user": ("reviewerID", "user_id"),
    "item": ("parent_asin", "asin", "business_id"),
    "time": ("unixReviewTime", "timestamp", "date"),
}
JSON = ("*.json", "*.json.gz", "*.jsonl", "*.jsonl.gz")
CSV = ("*.csv", "*.csv.gz")
ASIN = r"^(B[0-9A-Z]{9}|\d{9}[\dX])$"


def amazon(place: Place, name: str) -> Log:
    """Every review file of a folder (meta_* gives titles): JSON lines, or CSV with or without a header."""
    files = [file for file in place.names(*JSON, *CSV) if "meta" not in file.rpartition("/")[2].lower()]
    if not files:
        raise InputError(f"{place.path} holds no review file: expected {', '.join(JSON + CSV)}")
    frames = [_csv(place, file) if ".csv" in file else _json(place, file) for file in files]
    if len({frame["time"].dtype for frame in frames}) > 1:
        frames = [frame.with_columns(pl.col("time").cast(pl.String)) for frame in frames]
    log = build_log(pl.concat(frames), {role: role for role in FIELDS}, str(place.path), name=name)
    return _titled(log, place, place.names("meta*.json", "meta*.json.gz", "meta*.jsonl", "meta*.jsonl.gz"), "title")


def yelp(place: Place, name: str) -> Log:
    """`yelp_academic_dataset_review.json`, with names from `…_business.json`."""
    files = place.names("*review*.json", "*review*.json.gz")
    if not files:
        raise InputError(f"{place.path} holds no review file: expected yelp_academic_dataset_review.json")
    columns = {role: role for role in FIELDS}
    log = build_log(pl.concat([_json(place, file) for file in files]), columns, str(place.path), name=name)
    return _titled(log, place, place.names("*business*.json", "*business*.json.gz"), "name")


def _csv(place: Place, file: str) -> pl.DataFrame:
    content = place.read(file)
    head = content[:4096].partition(b"\n")[0].decode("utf-8", "replace").strip().split(",")
    named = {role: next((key for key in keys if key in head), None) for role, keys in FIELDS.items()}
    where = f"{file} of {place.path}"
    try:
        frame = pl.read_csv(content, has_header=any(named.values()), infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"cannot read {where}: {str(error).splitlines()[0]}") from None
    if all(named.values()):
        return frame.select(**{role: pl.col(str(key)) for role, key in named.items()})
    if any(named.values()) or frame.width != 4:
        raise InputError(f"{where}: expected columns user, item, rating, time; got {', '.join(head[:8])}")
    first, second, _, time = frame.columns
    # 2014 writes user, item; 2018 item, user: the product numbers tell which
    swapped = frame[first].head(1000).str.contains(ASIN).sum() > frame[second].head(1000).str.contains(ASIN).sum()
    user, item = (second, first) if swapped else (first, second)
    return frame.select(user=pl.col(user), item=pl.col(item), time=pl.col(time))


def _json(place: Place, file: str) -> pl.DataFrame:
    where = f"{file} of {place.path}"
    with place.open(file) as stream:
        try:
            first = json.loads(stream.readline() or b"null")
        except ValueError:
            first = None
    if not isinstance(first, dict):
        raise InputError(f"{where} is not JSON lines: its first line is no JSON object")
    keys = {role: next((key for key in keys if key in first), None) for role, keys in FIELDS.items()}
    missing = [role for role, key in keys.items() if key is None]
    if missing:
        raise InputError(f"{where} has no {missing[0]}: its fields are {', '.join(first)}")
    number = isinstance(first[keys["time"]], int | float)
    types: dict[str, Any] = {str(keys["user"]): pl.String, str(keys["item"]): pl.String}
    types[str(keys["time"])] = pl.Int64 if number else pl.String
    with place.open(file) as stream:
        parts = [_block(block, types, where) for block in _blocks(stream)]
    return pl.concat(parts).select(**{role: pl.col(str(key)) for role, key in keys.items()})


def _blocks(stream: BufferedIOBase) -> Iterator[bytes]:
    """Whole lines, some 64 MB at a time: a review file may be larger than memory."""
    while block := stream.read(BLOCK):
        yield block + stream.readline()


def _block(block: bytes, types: dict[str, Any], where: str) -> pl.DataFrame:
    try:
        return pl.read_ndjson(block, schema=types)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"cannot read {where}: {str(error).splitlines()[0]}") from None


def _titled(log: Log, place: Place, files: list[str], field: str) -> Log:
    """Names of the log's items from files about items, if there are any."""
    wanted, names = set(map(str, log.item_ids.tolist())), dict[str, str | None]()
    for file in files:
        with place.open(file) as stream:
            for line in stream:
                row = _row(line)
                key = next((str(row[key]) for key in FIELDS["item"] if key in row), None)
                if key in wanted:
                    names[str(key)] = row.get(field)
    return with_items(log, list(names), name=list(names.values())) if names else log


def _row(line: bytes) -> dict[str, str]:
    text = line.decode("utf-8", "replace").strip()
    try:
        row = json.loads(text)
    except ValueError:
        try:
            row = ast.literal_eval(text)  # 2014's files about items are Python literals
        except (ValueError, SyntaxError):
            row = None
    return row if isinstance(row, dict) else {}
